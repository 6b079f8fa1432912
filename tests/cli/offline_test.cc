// `inspect`, `verify --data-dir` and the command line itself, on real data directories.

#include "tests/cli/cli_test_util.h"

#include <sys/stat.h>

#include <map>

#include "cli/core/text.h"
#include "storage/format/commit.h"

namespace holdfast::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Shards 0 and 1 of a world of 2 on one node with one directory, read-only for the tests.
class OfflineTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = folder_ / "data";
    MakeDataDirs({dir_}, {0, 1}, 2);
  }
  std::string Version(uint64_t step) const { return dir_ + "/lm/v1-" + std::to_string(step); }

  TempFolder folder_;
  std::string dir_;
};

TEST(CommandLineTest, HelpHasExamples) {
  for (const char* command : {"status", "nodes", "versions", "verify", "inspect", "restore", "pin",
                              "unpin", "dump", "completion"}) {
    CliResult result = RunCli({command, "--help"});
    EXPECT_EQ(result.exit_code, 0) << command;
    EXPECT_THAT(result.out, AllOf(HasSubstr("Examples:"), HasSubstr("holdfast"))) << command;
  }
  CliResult whole = RunCli({"--help"});
  EXPECT_EQ(whole.exit_code, 0);
  EXPECT_THAT(whole.out, AllOf(HasSubstr("Exit codes:"), HasSubstr("restore")));
}

TEST(CommandLineTest, VersionNamesTheBuild) {
  CliResult result = RunCli({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, AllOf(testing::StartsWith("holdfast 0."), HasSubstr("commit")));
}

TEST(CommandLineTest, UnknownCommandsNameTheNearest) {
  for (const auto& [word, nearest] : std::vector<std::pair<std::string, std::string>>{
           {"stat", "status"}, {"verison", "versions"}, {"restor", "restore"}}) {
    const CliResult result = RunCli({"-o", "json", word, "lm"});
    EXPECT_EQ(result.exit_code, 64);
    EXPECT_THAT(result.err, AllOf(HasSubstr("no command '" + word + "'"),
                                  HasSubstr("did you mean '" + nearest + "'?")));
  }
  const CliResult far = RunCli({"frobnicate"});
  EXPECT_THAT(far.err, AllOf(HasSubstr("no command 'frobnicate'"), HasSubstr("--help"),
                             Not(HasSubstr("did you mean"))));
}

TEST(CommandLineTest, UsageErrorsAre64) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {},
           {"frobnicate"},
           {"status", "--frobnicate"},
           {"verify", "lm", "--version", "20"},
           {"verify", "lm", "--version", "01-20"},
           {"verify", "lm", "--version", "0-20"},
           {"verify", "--version", "1-20", "--data-dir", "/tmp"},
           {"verify", "--sample", "200%"},
           {"restore", "lm"},
           {"restore", "../lm", "--to", "x"},
           {"restore", "lm", "--to", "x", "--tier", "tape"},
           {"restore", "lm", "--to", "x", "--tier", "disk", "--from-data-dir", "/tmp"},
           {"pin", "lm"},
           {"pin", "lm", "latest"},
           {"unpin", "lm", "newest"},
           {"status", "-o", "yaml"},
           {"status", "--timeout", "soon"},
           {"versions", "--sort", "colour"},
           {"completion", "csh"}}) {
    CliResult result = RunCli(args);
    EXPECT_EQ(result.exit_code, 64) << (args.empty() ? "" : args[0]) << result.Shown();
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err, "");
  }
}

TEST(CommandLineTest, VersionSyntaxErrorsShowAnExample) {
  CliResult result = RunCli({"pin", "lm", "120"});
  EXPECT_THAT(result.err, HasSubstr("'120' is not a version: write <incarnation>-<step>"));
}

TEST(CommandLineTest, BashCompletionIsValidBash) {
  CliResult result = RunCli({"completion", "bash"});
  ASSERT_EQ(result.exit_code, 0);
  TempFolder folder;
  std::string test = result.out +
                     "COMP_WORDS=(holdfast re); COMP_CWORD=1; _holdfast\n"
                     "echo \"${COMPREPLY[*]}\"\n"
                     "COMP_WORDS=(holdfast restore --dr); COMP_CWORD=2; _holdfast\n"
                     "echo \"${COMPREPLY[*]}\"\n";
  WriteText(folder / "script", test);
  std::string command = "bash " + (folder / "script") + " > " + (folder / "out") + " 2>&1";
  ASSERT_EQ(::system(command.c_str()), 0) << ReadText(folder / "out");
  EXPECT_EQ(ReadText(folder / "out"), "restore retain revoke\n--dry-run\n");
}

TEST(CommandLineTest, ZshCompletionDescribesCommandsAndOptions) {
  CliResult result = RunCli({"completion", "zsh"});
  ASSERT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, testing::StartsWith("#compdef holdfast\n"));
  EXPECT_THAT(result.out, HasSubstr("\n    'versions:"));
  EXPECT_THAT(result.out, HasSubstr("'(-w --watch)--watch["));
  // A quote, a bracket or a colon of a description would end the specification.
  TempFolder folder;
  WriteText(folder / "script", result.out);
  if (::system("command -v zsh > /dev/null") != 0) GTEST_SKIP() << "zsh is not installed";
  const std::string command = "zsh -c 'autoload -Uz compinit && compinit -u -d " +
                              (folder / "dump") + " && source " + (folder / "script") +
                              " && print -r $_comps[holdfast]' > " + (folder / "out") + " 2>&1";
  ASSERT_EQ(::system(command.c_str()), 0) << ReadText(folder / "out");
  EXPECT_EQ(ReadText(folder / "out"), "_holdfast\n");
}

TEST_F(OfflineTest, InspectImageTable) {
  CliResult result = RunCli({"inspect", Version(20) + "/rank-1.safetensors"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("kind:   image of a shard, format 1\n"
                                    "shard:  lm/1-20/rank-1 of a world of 2\n"));
  EXPECT_THAT(result.out, HasSubstr("holds:  4 tensors, 1 extra\n"));
  EXPECT_THAT(result.out, HasSubstr("bytes:  structure ok (--deep compares every byte)\n"));
  EXPECT_THAT(
      result.out,
      HasSubstr("\n"
                "TENSOR           DTYPE  SHAPE        SLICE                                 BYTES\n"
                "step             I64    []           whole                                     8\n"
                "layers.0.weight  F32    [12400, 64]  [12400:24800, 0:64] of [24800, 64]  3174400\n"
                "Größe.重み       BF16   [3]          whole                                     6\n"
                "empty            U8     [0, 5]       whole                                     0\n"
                "\n"
                "EXTRA  BYTES\n"
                "rng       16\n"));
}

TEST_F(OfflineTest, InspectImageJson) {
  CliResult result =
      RunCli({"inspect", Version(20) + "/rank-1.safetensors", "--deep", "-o", "json"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  auto json = result.Json();
  EXPECT_EQ(json["schema"], 2);
  EXPECT_EQ(json["kind"], "inspect");
  EXPECT_EQ(json["what"], "image");
  EXPECT_EQ(json["job"], "lm");
  EXPECT_EQ(json["version"], "1-20");
  EXPECT_EQ(json["rank"], 1);
  EXPECT_EQ(json["world"], 2);
  TestImage image(Identity("lm", 1, 20, 1, 2), kRows);
  EXPECT_EQ(json["bytes"], image.image.size());
  EXPECT_EQ(json["data_offset"], image.data_offset);
  EXPECT_EQ(json["check"]["ok"], true);
  EXPECT_EQ(json["check"]["chunks_checked"], 4);
  ASSERT_EQ(json["tensors"].size(), 4U);
  EXPECT_EQ(json["tensors"][1]["name"], "layers.0.weight");
  EXPECT_EQ(json["tensors"][1]["global_shape"], nlohmann::json({24800, 64}));
  EXPECT_EQ(json["tensors"][1]["offset"], nlohmann::json({12400, 0}));
  EXPECT_EQ(json["tensors"][2]["name"], "Größe.重み");
  EXPECT_EQ(json["extras"][0]["name"], "rng");
}

TEST_F(OfflineTest, InspectNamesTheDamagedChunk) {
  std::string path = Version(20) + "/rank-0.safetensors";
  FlipBit(path, (1 << 20) + 77);
  EXPECT_EQ(RunCli({"inspect", path}).exit_code, 0);  // the structure is intact
  CliResult result = RunCli({"inspect", path, "--deep"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("DAMAGED"), HasSubstr("rank-0.safetensors: chunk 1 (image bytes")));
}

TEST_F(OfflineTest, InspectSeal) {
  CliResult result = RunCli({"inspect", Version(10) + "/rank-0.seal", "--deep"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("shard:   lm/1-10/rank-0 of a world of 2\n"));
  EXPECT_THAT(result.out, HasSubstr("bytes:   4 of 4 chunks ok\n"));
  auto json = RunCli({"inspect", Version(10) + "/rank-0.seal", "-o", "json"}).Json();
  EXPECT_EQ(json["what"], "seal");
  EXPECT_EQ(json["chunks"], 4);
  EXPECT_EQ(json["sealed_at"], "2023-11-14T22:13:20.000Z");
  char digest[17];
  std::snprintf(digest, sizeof(digest), "%016llx",
                static_cast<unsigned long long>(
                    TestImage(Identity("lm", 1, 10, 0, 2), kRows).Seal().digest()));
  EXPECT_EQ(json["digest"], digest);
}

TEST_F(OfflineTest, InspectForeignSafetensors) {
  std::string header =
      R"({"__metadata__":{"format":"pt"},"w\u001b[31m":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  bytes += header + std::string("12345678");
  WriteText(folder_ / "model.safetensors", bytes);
  CliResult result = RunCli({"inspect", folder_ / "model.safetensors"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.out, AllOf(HasSubstr("safetensors file, not written by Holdfast"),
                                HasSubstr("format:  pt"), HasSubstr("w\\x1b[31m")));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
  auto json = RunCli({"inspect", folder_ / "model.safetensors", "--deep", "-o", "json"}).Json();
  EXPECT_EQ(json["what"], "safetensors");
  EXPECT_EQ(json["check"]["compared"], false);
  EXPECT_EQ(json["tensors"][0]["name"], "w\x1b[31m");
}

TEST_F(OfflineTest, InspectRefusesGarbage) {
  std::string good = ReadText(Version(20) + "/rank-0.safetensors");
  WriteText(folder_ / "cut.safetensors", good.substr(0, good.size() - 1));
  WriteText(folder_ / "short.safetensors", "abc");
  WriteText(folder_ / "empty.safetensors", "");
  WriteText(folder_ / "huge.safetensors", std::string(7, '\xff') + "\x7f{}");
  for (const char* name : {"cut", "short", "empty", "huge"}) {
    CliResult result = RunCli({"inspect", folder_ / (std::string(name) + ".safetensors")});
    EXPECT_EQ(result.exit_code, 2) << name << result.Shown();
    EXPECT_THAT(result.err, HasSubstr(name)) << name;
    EXPECT_EQ(result.out, "") << name;
  }
  EXPECT_EQ(RunCli({"inspect", folder_ / "absent"}).exit_code, 4);
  // The folder is inspected file by file.
  EXPECT_EQ(RunCli({"inspect", folder_.path()}).exit_code, 2);
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(RunCli({"inspect", folder_ / "pipe"}).exit_code, 1);
}

TEST_F(OfflineTest, ANewerFormatIsReportedAndNotAsDamage) {
  std::string path = Version(20) + "/rank-0.safetensors";
  std::string bytes = ReadText(path);
  size_t at = bytes.find(R"("holdfast.format":"1")");
  ASSERT_NE(at, std::string::npos);
  bytes[at + 19] = '9';
  WriteText(folder_ / "newer.safetensors", bytes);
  CliResult result = RunCli({"inspect", folder_ / "newer.safetensors"});
  EXPECT_EQ(result.exit_code, 1) << result.Shown();
  EXPECT_THAT(result.err, HasSubstr("Unsupported"));
}

TEST_F(OfflineTest, InspectDirectories) {
  for (const std::string& dir : {Version(20), Version(20) + "/"}) {
    CliResult version = RunCli({"inspect", dir, "--deep"});
    EXPECT_EQ(version.exit_code, 0) << version.Shown();
    EXPECT_THAT(version.out, HasSubstr("holds:      2 shards of a world of 2"));
    EXPECT_THAT(version.out, HasSubstr("ok, 4/4 chunks"));
  }
  CliResult data = RunCli({"inspect", dir_});
  EXPECT_EQ(data.exit_code, 0) << data.Shown();
  EXPECT_THAT(data.out, HasSubstr("cluster:    test\n"));
  EXPECT_THAT(data.out, HasSubstr("JOB  VERSION  SHARDS  WORLD     SIZE  COMMIT  RESULT\n"
                                  "lm   1-10          2      2  6.1 MiB  -       structure ok\n"
                                  "lm   1-20          2      2  6.1 MiB  -       structure ok\n"));
  CliResult job = RunCli({"inspect", dir_ + "/lm", "-o", "json"});
  EXPECT_EQ(job.Json()["what"], "job");
  EXPECT_EQ(job.Json()["versions"].size(), 2U);
  EXPECT_EQ(job.Json()["versions"][1]["shards"][1]["rank"], 1);
}

TEST_F(OfflineTest, InspectFindsSwappedShards) {
  fs::rename(Version(20) + "/rank-0.seal", Version(20) + "/keep");
  fs::copy(Version(20) + "/rank-1.seal", Version(20) + "/rank-0.seal");
  CliResult result = RunCli({"inspect", Version(20)});
  EXPECT_EQ(result.exit_code, 2) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("is the seal of lm/1-20/rank-1"));
}

TEST_F(OfflineTest, VerifyGood) {
  CliResult result = RunCli({"verify", "--data-dir", dir_, "--deep"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("4 shards checked, every byte: 4 ok (12.1 MiB)\n"));
  EXPECT_EQ(result.err, "");
  auto json =
      RunCli({"verify", "lm", "--version", "1-20", "--data-dir", dir_, "-o", "json"}).Json();
  EXPECT_EQ(json["schema"], 2);
  EXPECT_EQ(json["ok"], true);
  ASSERT_EQ(json["shards"].size(), 2U);
  EXPECT_EQ(json["shards"][1]["version"], "1-20");
  EXPECT_EQ(json["shards"][1]["result"], "ok");
  EXPECT_EQ(json["shards"][1]["data_dir"], dir_);
}

TEST_F(OfflineTest, TheCommitThatTheNodeKnowsIsComparedWithTheShards) {
  VersionCommit commit{"proven", LifeId{5}, {Incarnation{1}, Step{30}}, 2, 0};
  auto volume = OpenVolume({dir_});
  std::vector<uint64_t> digests;
  for (const uint32_t rank : {0U, 1U}) {
    const TestImage image(Identity("proven", 1, 30, rank, 2), 100);
    Publish(*volume, image, commit.life);
    ShardSeal seal = image.Seal();
    seal.life = commit.life;
    digests.push_back(seal.digest());
  }
  commit.digest = CommitDigest(digests);
  ASSERT_TRUE(volume->WriteCommits({commit}).ok());
  const std::vector<std::string> inspect = {"inspect", dir_};
  const std::vector<std::string> verify = {"verify", "proven", "--data-dir", dir_};
  EXPECT_THAT(RunCli(inspect).out,
              testing::ContainsRegex("COMMIT +RESULT\n(lm .*\n)+proven +1-30 .* " +
                                     FormatDigest(commit.digest) + "  structure ok\n"));
  CliResult result = RunCli(verify);
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("; 1 version with all committed shards\n"));
  // Sound shards that are not the committed ones.
  const std::string found = FormatDigest(commit.digest);
  commit.digest ^= 1;
  ASSERT_TRUE(volume->WriteCommits({commit}).ok());
  const std::string why =
      " combine to " + found + ", but the commit has " + FormatDigest(commit.digest) + "\n";
  for (const auto& command : {inspect, verify}) {
    result = RunCli(command);
    EXPECT_EQ(result.exit_code, 2) << result.Shown();
    EXPECT_THAT(result.out, AllOf(HasSubstr("NOT AS COMMITTED "), HasSubstr(why)));
  }
  EXPECT_THAT(result.out, Not(HasSubstr("with all committed shards")));
  // A commit of another life is that of another version.
  commit.life = LifeId{6};
  ASSERT_TRUE(volume->WriteCommits({commit}).ok());
  for (const auto& command : {inspect, verify}) EXPECT_EQ(RunCli(command).exit_code, 0);
}

TEST_F(OfflineTest, VerifyNamesFileAndChunk) {
  FlipBit(Version(20) + "/rank-1.safetensors", (2 << 20) + 5);
  CliResult shallow = RunCli({"verify", "--data-dir", dir_});
  EXPECT_EQ(shallow.exit_code, 0) << shallow.Shown();
  CliResult deep = RunCli({"verify", "--data-dir", dir_, "--deep"});
  EXPECT_EQ(deep.exit_code, 2) << deep.Shown();
  EXPECT_THAT(deep.out, AllOf(HasSubstr("3 ok"), HasSubstr("1 damaged")));
  EXPECT_THAT(deep.out,
              testing::ContainsRegex("DAMAGED lm/1-20/rank-1 .*rank-1.safetensors: chunk 2 "));
}

TEST_F(OfflineTest, VerifyTruncatedAndMissing) {
  fs::resize_file(Version(20) + "/rank-0.safetensors", 5000);
  fs::remove(Version(10) + "/rank-1.safetensors");
  FlipBit(Version(10) + "/rank-0.seal", 30);
  CliResult result = RunCli({"verify", "--data-dir", dir_, "-o", "json"});
  EXPECT_EQ(result.exit_code, 2) << result.Shown();
  std::map<std::string, std::string> results;
  const auto json = result.Json();
  for (const auto& shard : json["shards"])
    results[shard["version"].get<std::string>() + "/" + shard["shard"].get<std::string>()] =
        shard["result"];
  EXPECT_EQ(results["1-20/rank-0"], "DAMAGED");
  EXPECT_EQ(results["1-20/rank-1"], "ok");
  EXPECT_NE(results["1-10/rank-1"], "ok");
  EXPECT_EQ(results["1-10/rank-0"], "DAMAGED");
  // The check changed nothing: the damaged file still exists.
  EXPECT_TRUE(fs::exists(Version(10) + "/rank-0.seal"));
  EXPECT_TRUE(fs::exists(Version(20) + "/rank-0.safetensors"));
}

TEST_F(OfflineTest, VerifyRefusesOtherDirectories) {
  CliResult result = RunCli({"verify", "--data-dir", folder_.path()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("is not a data directory"));
  EXPECT_EQ(RunCli({"verify", "--data-dir", folder_ / "absent"}).exit_code, 4);
  EXPECT_EQ(RunCli({"verify", "other", "--data-dir", dir_}).exit_code, 4);
}

TEST_F(OfflineTest, ASampleOmitsShards) {
  auto json = RunCli({"verify", "--data-dir", dir_, "--sample", "25%", "-o", "json"}).Json();
  EXPECT_EQ(json["shards"].size(), 1U);
  EXPECT_EQ(json["left_out"], 3);
}

TEST(PartsTest, SeveralDirectoriesOfOneNode) {
  TempFolder folder;
  MakeDataDirs({folder / "d0", folder / "d1"}, {0, 1}, 2);
  CliResult good = RunCli({"verify", "--deep", "--data-dir", folder / "d1", folder / "d0"});
  EXPECT_EQ(good.exit_code, 0) << good.Shown();
  CliResult half = RunCli({"verify", "--data-dir", folder / "d0"});
  EXPECT_EQ(half.exit_code, 1) << half.Shown();
  EXPECT_THAT(half.err, HasSubstr("data director"));

  std::string part = folder / "d1/lm/v1-20/rank-0.part-1.safetensors";
  auto json = RunCli({"inspect", part, "-o", "json"}).Json();
  EXPECT_EQ(json["what"], "part");
  EXPECT_EQ(json["rank"], 0);
  CliResult seal = RunCli({"inspect", folder / "d0/lm/v1-20/rank-0.seal", "--deep"});
  EXPECT_EQ(seal.exit_code, 0) << seal.Shown();
  EXPECT_THAT(seal.out, HasSubstr("not in this directory: rank-0.part-1.safetensors"));

  FlipBit(part, fs::file_size(part) - 3);
  CliResult bad = RunCli({"verify", "--deep", "--data-dir", folder / "d0", folder / "d1"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.out,
              testing::ContainsRegex("DAMAGED lm/1-20/rank-0 .*rank-0.part-1.safetensors"));
}

TEST_F(OfflineTest, ATerminalGetsColourAndFittedTables) {
  std::vector<std::string> args = {"verify", "--data-dir", dir_};
  CliResult wide = RunOnTerminal(args, 200);
  EXPECT_EQ(wide.exit_code, 0);
  EXPECT_THAT(wide.out, HasSubstr("\x1b[32mok\x1b[0m"));
  CliOptions plain;
  plain.env = {"NO_COLOR=1"};
  CliResult narrow = RunOnTerminal(args, 50, "", plain);
  EXPECT_THAT(narrow.out, Not(HasSubstr("\x1b[3")));
  EXPECT_THAT(narrow.out, HasSubstr("…"));
  for (const std::string& line : Lines(narrow.out)) {
    if (line.find("rank") == std::string::npos) {
      EXPECT_LE(std::count_if(line.begin(), line.end(),
                              [](char c) { return (c & 0xC0) != 0x80 && c != '\r'; }),
                50)
          << line;
    }
  }
  // Without a terminal, no cell is cut.
  EXPECT_THAT(RunCli(args).out,
              AllOf(HasSubstr(dir_), Not(HasSubstr("\x1b")), Not(HasSubstr("…"))));
}

TEST_F(OfflineTest, FullDiskUnderStdoutIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  std::string command = CliPath() + " inspect " + dir_ + " > /dev/full 2> " + (folder_ / "err");
  int status = ::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(ReadText(folder_ / "err"), HasSubstr("cannot write the output"));
}

}  // namespace
}  // namespace holdfast::cli
