// `holdfast doctor`, the real program.

#include "tests/cli/cli_test_util.h"

namespace holdfast::cli {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kSmall = {"doctor", "--self-test", "--memory",
                                         "16MiB",  "--disk",      "8MiB"};

std::vector<std::string> With(std::vector<std::string> more) {
  std::vector<std::string> args = kSmall;
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(DoctorTest, AHealthyMachinePassesAndNoFileIsLeft) {
  TempFolder folder;
  const CliResult result = RunCli(With({"--data-dir", folder.path(), "-o", "json"}));
  ASSERT_EQ(result.exit_code, 0) << result.Shown();
  const auto json = result.Json();
  EXPECT_EQ(json["kind"], "self_test");
  ASSERT_EQ(json["checks"].size(), 3U);
  for (const auto& check : json["checks"]) {
    EXPECT_EQ(check["result"], "passed") << check.dump();
    EXPECT_GT(check["seconds"].get<double>(), 0);
  }
  EXPECT_EQ(json["checks"][2]["bytes"], 8U << 20U);
  EXPECT_GT(json["checks"][2]["read_bytes_per_s"].get<double>(), 0);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(DoctorTest, AMissingDirectoryIsNotTested) {
  TempFolder folder;
  const CliResult result = RunCli(With({"--data-dir", folder / "none"}));
  EXPECT_EQ(result.exit_code, 3) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("not tested"));
  EXPECT_THAT(result.out, HasSubstr("no such directory"));
}

TEST(DoctorTest, ADirectoryOfAnotherUserIsNotTested) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can change the user";
  TempFolder folder;
  fs::permissions(folder.path(), fs::perms::owner_all);
  CliOptions options;
  options.unprivileged = true;
  const CliResult result = RunCli(With({"--data-dir", folder.path()}), options);
  EXPECT_EQ(result.exit_code, 3) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("not tested"));
}

}  // namespace
}  // namespace holdfast::cli
