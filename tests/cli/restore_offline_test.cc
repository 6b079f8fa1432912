// `restore --from-data-dir`: bytes, refusals, and that no partial result stays.

#include <signal.h>

#include <chrono>
#include <thread>

#include "tests/cli/cli_test_util.h"

namespace holdfast::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

std::vector<std::string> NamesIn(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) names.push_back(entry.path().filename());
  return names;
}

void ExpectRestored(const std::string& dir, uint64_t step, uint32_t world) {
  std::vector<std::string> names;
  for (uint32_t rank = 0; rank < world; ++rank) {
    char name[64];
    std::snprintf(name, sizeof(name), "rank-%05u-of-%05u.safetensors", rank, world);
    names.emplace_back(name);
    std::string expected = TestImage(Identity("lm", 1, step, rank, world), kRows).bytes();
    EXPECT_TRUE(ReadText(dir + "/" + name) == expected) << name << " differs";
  }
  EXPECT_THAT(NamesIn(dir), testing::UnorderedElementsAreArray(names));
}

/// Two nodes, the second with two devices; two ranks each.
class RestoreTest : public testing::Test {
 protected:
  void SetUp() override {
    MakeDataDirs({folder_ / "n0"}, {0, 1}, 4);
    MakeDataDirs({folder_ / "n1a", folder_ / "n1b"}, {2, 3}, 4);
  }
  std::vector<std::string> Args(std::vector<std::string> more = {}) const {
    std::vector<std::string> args = {"restore", "lm", "--to", folder_ / "out"};
    args.insert(args.end(), more.begin(), more.end());
    args.insert(args.end(), {"--from-data-dir", folder_ / "n0", folder_ / "n1b", folder_ / "n1a"});
    return args;
  }

  TempFolder folder_;
};

TEST_F(RestoreTest, NewestCompleteVersionByteForByte) {
  CliResult result = RunCli(Args());
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  ExpectRestored(folder_ / "out", 20, 4);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("lm/1-20: 4 ranks, 12.1 MiB\n"),
                    HasSubstr("restored lm/1-20 to " + (folder_ / "out") + ": 4 files")));
  EXPECT_THAT(result.err, HasSubstr("1-20 is the newest version with all shards here"));
}

TEST_F(RestoreTest, RestoredFilesAreSafetensors) {
  ASSERT_EQ(RunCli(Args()).exit_code, 0);
  auto json =
      RunCli({"inspect", folder_ / "out/rank-00002-of-00004.safetensors", "-o", "json"}).Json();
  EXPECT_EQ(json["what"], "image");
  EXPECT_EQ(json["rank"], 2);
  EXPECT_EQ(json["world"], 4);
}

TEST_F(RestoreTest, AFolderOfRestoredFilesCanBeInspected) {
  ASSERT_EQ(RunCli(Args()).exit_code, 0);
  CliResult result = RunCli({"inspect", folder_ / "out"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.out, AllOf(HasSubstr("rank-00003-of-00004.safetensors"),
                                HasSubstr("lm/1-20/rank-3"), HasSubstr("header ok")));
  auto json = RunCli({"inspect", folder_ / "out", "-o", "json"}).Json();
  EXPECT_EQ(json["what"], "folder");
  ASSERT_EQ(json["files"].size(), 4U);
  EXPECT_EQ(json["files"][2]["shard"], "lm/1-20/rank-2");
  // Damage is reported in JSON, too.
  WriteText(folder_ / "out/rank-00001-of-00004.safetensors", "not a header at all");
  CliResult folder = RunCli({"inspect", folder_ / "out", "-o", "json"});
  EXPECT_EQ(folder.exit_code, 2) << folder.Shown();
  EXPECT_EQ(folder.Json()["files"][1]["ok"], false);
  CliResult file =
      RunCli({"inspect", folder_ / "out/rank-00001-of-00004.safetensors", "-o", "json"});
  EXPECT_EQ(file.exit_code, 2) << file.Shown();
  EXPECT_EQ(file.Json()["ok"], false);
  EXPECT_THAT(file.err, HasSubstr("DataLoss"));
}

TEST_F(RestoreTest, ChosenVersionAsJson) {
  CliResult result = RunCli(Args({"--version", "1-10", "-o", "json"}));
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  ExpectRestored(folder_ / "out", 10, 4);
  auto json = result.Json();
  EXPECT_EQ(json["schema"], 2);
  EXPECT_EQ(json["version"], "1-10");
  EXPECT_EQ(json["restored"], true);
  ASSERT_EQ(json["shards"].size(), 4U);
  EXPECT_EQ(json["shards"][3]["file"], "rank-00003-of-00004.safetensors");
  EXPECT_EQ(json["shards"][3]["tier"], "disk");
}

TEST_F(RestoreTest, DryRunWritesNothing) {
  CliResult result = RunCli(Args({"--dry-run"}));
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  EXPECT_THAT(result.out, HasSubstr("rank-00003-of-00004.safetensors"));
  EXPECT_THAT(result.out, Not(HasSubstr("restored")));
}

TEST_F(RestoreTest, NeverOverwrites) {
  fs::create_directory(folder_ / "out");
  WriteText(folder_ / "out/notes.txt", "mine");
  CliResult result = RunCli(Args());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("is not empty"), HasSubstr("notes.txt")));
  EXPECT_THAT(NamesIn(folder_ / "out"), UnorderedElementsAre("notes.txt"));
  fs::remove(folder_ / "out/notes.txt");
  EXPECT_EQ(RunCli(Args()).exit_code, 0);  // an empty directory is accepted
  EXPECT_EQ(RunCli(Args()).exit_code, 1);
  ExpectRestored(folder_ / "out", 20, 4);
}

TEST_F(RestoreTest, TargetIsAFileOrBeneathOne) {
  WriteText(folder_ / "out", "a file");
  EXPECT_EQ(RunCli(Args()).exit_code, 1);
  EXPECT_EQ(ReadText(folder_ / "out"), "a file");
  CliResult beneath = RunCli({"restore", "lm", "--to", folder_ / "out/deeper", "--version", "1-20",
                              "--from-data-dir", folder_ / "n0", folder_ / "n1a", folder_ / "n1b"});
  EXPECT_EQ(beneath.exit_code, 1) << beneath.Shown();
}

TEST_F(RestoreTest, UnwritableTarget) {
  fs::create_directory(folder_ / "locked");
  fs::permissions(folder_ / "locked", fs::perms(0555));
  fs::permissions(folder_.path(), fs::perms(0755));
  CliOptions options;
  options.unprivileged = true;
  CliResult result = RunCli({"restore", "lm", "--to", folder_ / "locked/out", "--from-data-dir",
                             folder_ / "n0", folder_ / "n1a", folder_ / "n1b"},
                            options);
  fs::permissions(folder_ / "locked", fs::perms(0755));
  EXPECT_EQ(result.exit_code, 1) << result.Shown();
  EXPECT_THAT(result.err, HasSubstr("PermissionDenied"));
  EXPECT_THAT(NamesIn(folder_ / "locked"), IsEmpty());
}

TEST_F(RestoreTest, DamageLeavesNothingBehind) {
  FlipBit(folder_ / "n0/lm/v1-20/rank-1.safetensors", (1 << 20) + 9);
  CliResult result = RunCli(Args());
  EXPECT_EQ(result.exit_code, 2) << result.Shown();
  EXPECT_THAT(result.err, testing::ContainsRegex("rank-1.safetensors: chunk 1 "));
  EXPECT_THAT(NamesIn(folder_ / "out"), IsEmpty());
  EXPECT_EQ(RunCli(Args({"--version", "1-10"})).exit_code, 0);
  ExpectRestored(folder_ / "out", 10, 4);
}

TEST_F(RestoreTest, MissingRanksAreNamed) {
  CliResult result =
      RunCli({"restore", "lm", "--to", folder_ / "out", "--from-data-dir", folder_ / "n0"});
  EXPECT_EQ(result.exit_code, 4) << result.Shown();
  EXPECT_THAT(result.err, HasSubstr("ranks 2, 3 of a world of 4 are missing"));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  EXPECT_EQ(RunCli(Args({"--version", "7-7"})).exit_code, 4);
}

TEST_F(RestoreTest, AnIncompleteNewestVersionIsSkipped) {
  fs::remove(folder_ / "n1a/lm/v1-20/rank-3.seal");
  CliResult result = RunCli(Args());
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  ExpectRestored(folder_ / "out", 10, 4);
}

TEST_F(RestoreTest, ASecondReplicaReplacesADamagedOne) {
  MakeDataDirs({folder_ / "copy"}, {1}, 4);
  FlipBit(folder_ / "n0/lm/v1-20/rank-1.safetensors", (1 << 20) + 9);
  std::vector<std::string> args = Args();
  args.push_back(folder_ / "copy");
  CliResult result = RunCli(args);
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  ExpectRestored(folder_ / "out", 20, 4);
  EXPECT_THAT(result.err, HasSubstr("trying disk on " + (folder_ / "copy")));
}

TEST_F(RestoreTest, ReplicasWithDifferentBadChunksCompleteEachOther) {
  MakeDataDirs({folder_ / "copy"}, {1}, 4);
  FlipBit(folder_ / "n0/lm/v1-20/rank-1.safetensors", (1 << 20) + 9);
  FlipBit(folder_ / "copy/lm/v1-20/rank-1.safetensors", 600'000);
  std::vector<std::string> args = Args();
  args.push_back(folder_ / "copy");
  CliResult result = RunCli(args);
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  ExpectRestored(folder_ / "out", 20, 4);
  FlipBit(folder_ / "copy/lm/v1-20/rank-1.safetensors", (1 << 20) + 9);
  fs::remove_all(folder_ / "out");
  CliResult lost = RunCli(args);
  EXPECT_EQ(lost.exit_code, 2) << lost.Shown();
  EXPECT_THAT(lost.err, AllOf(HasSubstr("disk on " + (folder_ / "n0")),
                              HasSubstr("disk on " + (folder_ / "copy"))));
}

TEST_F(RestoreTest, ATerminalIsAskedForConfirmation) {
  CliResult no = RunOnTerminal(Args(), 120, "n\n");
  EXPECT_EQ(no.exit_code, 1) << no.Shown();
  EXPECT_THAT(no.out, AllOf(HasSubstr("[y/N]"), HasSubstr("nothing was written")));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  CliResult yes = RunOnTerminal(Args(), 120, "y\n");
  EXPECT_EQ(yes.exit_code, 0) << yes.Shown();
  ExpectRestored(folder_ / "out", 20, 4);
  fs::remove_all(folder_ / "out");
  CliResult unasked = RunOnTerminal(Args({"--yes"}), 120);
  EXPECT_EQ(unasked.exit_code, 0) << unasked.Shown();
  EXPECT_THAT(unasked.out, Not(HasSubstr("[y/N]")));
}

TEST_F(RestoreTest, KilledBeforeTheFirstRenameNoFileIsPublished) {
  CliOptions options;
  options.env = {"HOLDFAST_CRASH=cli.before_rename"};
  EXPECT_EQ(RunCli(Args(), options).exit_code, kBySignal + SIGKILL);
  for (const std::string& name : NamesIn(folder_ / "out")) EXPECT_EQ(name[0], '.') << name;
  // The remaining temporary file prevents a second restore, which names it.
  CliResult again = RunCli(Args());
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("is not empty"));
}

}  // namespace
}  // namespace holdfast::cli
