// What the coordinator records of `verify`, and what `versions` shows of it.

#include "storage/format/commit.h"
#include "tests/cli/online_fixture.h"

namespace holdfast::cli {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

TEST_F(OnlineTest, VerifyRecordsWhatItFound) {
  const auto verify = [this](std::vector<std::string> more) {
    more.insert(more.begin(), {"verify", "lm", "--version", "1-20"});
    coordinator_.verified.clear();
    return Cli(more);
  };
  FlipBit(folder_ / "n1/lm/v1-20/rank-0.safetensors", (1 << 20) + 1);
  EXPECT_EQ(verify({"--deep"}).exit_code, 2);
  ASSERT_EQ(coordinator_.verified.size(), 1U);
  EXPECT_EQ(coordinator_.verified[0].verification().ok(), 3U);
  EXPECT_EQ(coordinator_.verified[0].verification().damaged(), 1U);
  EXPECT_EQ(verify({"--sample", "25%"}).exit_code, 0);
  ASSERT_EQ(coordinator_.verified.size(), 1U);
  EXPECT_EQ(coordinator_.verified[0].verification().ok(), 1U);
  EXPECT_EQ(coordinator_.verified[0].verification().left_out(), 3U);
  agent_servers_[1].server->Shutdown(std::chrono::system_clock::time_point::min());
  agent_servers_[1].server.reset();
  EXPECT_EQ(verify({}).exit_code, 3);
  ASSERT_EQ(coordinator_.verified.size(), 1U);
  EXPECT_EQ(coordinator_.verified[0].verification().ok(), 2U);
  EXPECT_EQ(coordinator_.verified[0].verification().unchecked(), 2U);
}

TEST_F(OnlineTest, VerifyNotesThatNothingIsRecorded) {
  const std::vector<std::string> command = {"verify", "lm", "--version", "1-20"};
  coordinator_.verified_outcome = NotFoundError("no committed version");
  EXPECT_THAT(Cli(command).out, Not(HasSubstr("note:"))) << "the version was removed meanwhile";
  coordinator_.verified_outcome = UnavailableError("the store is full");
  CliResult result = Cli(command);
  EXPECT_EQ(result.exit_code, 0) << "the check itself has a result";
  EXPECT_THAT(result.out,
              HasSubstr("note: the coordinator did not record the results: the store is full"));
  coordinator_.records_verifications = false;
  result = Cli(command);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, Not(HasSubstr("note:"))) << "an older coordinator records nothing";
}

TEST_F(OnlineTest, VersionsShowTheLastVerification) {
  auto& versions = *coordinator_.versions["lm"].mutable_versions();
  auto* found = versions[0].mutable_verification();
  found->set_wall_nanos(Clock::Real().WallNanos() - 3 * kAgeNanos);
  found->set_ok(7);
  found->set_left_out(1);
  EXPECT_THAT(Cli({"versions", "lm", "-o", "wide"}).out,
              ContainsRegex("VERIFIED +WHY NOT\n.* ok \\(structure\\) \\(sample\\) [0-9a-z]+ ago"));
  EXPECT_THAT(Cli({"versions", "lm"}).out, Not(HasSubstr("VERIFIED")));
  auto json = Cli({"versions", "lm", "-o", "json"}).Json()["versions"];
  EXPECT_EQ(json[0]["verification"]["result"], "ok");
  EXPECT_EQ(json[0]["verification"]["ok"], 7);
  EXPECT_EQ(json[0]["verification"]["left_out"], 1);
  EXPECT_EQ(json[0]["verification"]["deep"], false);
  EXPECT_EQ(json[0]["verification"]["time"].get<std::string>().size(), 24U);
  EXPECT_EQ(json[1]["verification"], nullptr);
  const auto result = [&] {
    return Cli({"versions", "lm", "-o", "json"}).Json()["versions"][0]["verification"]["result"];
  };
  found->set_unchecked(1);
  EXPECT_EQ(result(), "UNCHECKED");
  found->set_missing(1);
  EXPECT_EQ(result(), "MISSING");
  found->set_damaged(1);
  EXPECT_EQ(result(), "DAMAGED");
}

TEST_F(OnlineTest, VersionsShowTheCommitDigestAndVerifyComparesIt) {
  const auto& sources = coordinator_.plans.at(static_cast<uint32_t>(Tier::kDisk)).sources();
  std::vector<uint64_t> digests;
  for (const auto& source : sources) digests.push_back(source.digest());
  auto& info = *coordinator_.versions["lm"].mutable_versions(0);
  info.set_commit_digest(CommitDigest(digests));
  const std::string text = FormatDigest(CommitDigest(digests));
  const std::string wide = Cli({"versions", "lm", "-o", "wide"}).out;
  EXPECT_THAT(wide, ContainsRegex("COMMIT +VERIFIED +WHY NOT\n1-20 .* " + text + " +"));
  EXPECT_THAT(wide, ContainsRegex("\n1-10 .* no +- +- +- +")) << "not known";
  EXPECT_THAT(Cli({"versions", "lm"}).out, Not(HasSubstr("COMMIT")));
  const auto json = Cli({"versions", "lm", "-o", "json"}).Json()["versions"];
  EXPECT_EQ(json[0]["commit_digest"], text);
  EXPECT_EQ(json[1]["commit_digest"], nullptr);
  const std::vector<std::string> verify = {"verify", "lm", "--version", "1-20"};
  CliResult result = Cli(verify);
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("; 1 version with all committed shards\n"));
  info.set_commit_digest(CommitDigest(digests) ^ 1);
  result = Cli(verify);
  EXPECT_EQ(result.exit_code, 2) << result.Shown();
  EXPECT_THAT(result.out,
              HasSubstr("NOT AS COMMITTED lm/1-20: the digests of its 2 shards "
                        "combine to " +
                        text + ", but the commit has " + FormatDigest(CommitDigest(digests) ^ 1)));
}

}  // namespace
}  // namespace holdfast::cli
