// Data directories, some of which are lost: shards that parity can decode are restored byte for
// byte, and missing ones are named.

#include <map>

#include "tests/cli/cli_test_util.h"
#include "tests/storage/parity/parity_group.h"

namespace holdfast::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// One node for each rank of version 1-20 of "lm", with parity.
class DecodeTest : public testing::Test {
 protected:
  void Make(uint32_t nodes, uint32_t parity, uint64_t rows = kRows) {
    nodes_ = nodes;
    rows_ = rows;
    const VersionId version{Incarnation{1}, Step{20}};
    ParityGroup group;
    std::vector<std::vector<Rank>> members;
    for (uint32_t rank = 0; rank < nodes; ++rank) {
      const TestImage image(Identity("lm", 1, 20, rank, nodes), rows + 64 * rank);
      group.Add(image.identity, image.image);
      members.push_back({Rank{rank}});
    }
    group.AddParity("lm", version, nodes, parity, members);
    for (uint32_t node = 0; node < nodes; ++node) {
      auto volume = OpenVolume({Dir(node)});
      for (const Rank shard : group.members[node]) {
        const ParityGroup::Shard& made = group.shards.at(shard);
        auto writer = volume->CreateShard(made.seal.identity, made.image);
        ASSERT_TRUE(writer.has_value()) << writer.error().ToString();
        ASSERT_TRUE((*writer)->Publish(made.seal).ok());
      }
    }
  }
  std::string Dir(uint32_t node) const { return folder_ / ("n" + std::to_string(node)); }
  std::string File(uint32_t node, const std::string& name) const {
    return Dir(node) + "/lm/v1-20/" + name;
  }
  std::vector<std::string> DirsWithout(const std::vector<uint32_t>& lost) const {
    std::vector<std::string> dirs;
    for (uint32_t node = 0; node < nodes_; ++node) {
      if (std::find(lost.begin(), lost.end(), node) == lost.end()) dirs.push_back(Dir(node));
    }
    return dirs;
  }
  CliResult Restore(const std::vector<uint32_t>& lost, std::vector<std::string> more = {}) {
    fs::remove_all(folder_ / "out");
    std::vector<std::string> args = {"restore", "lm", "--to", folder_ / "out"};
    args.insert(args.end(), more.begin(), more.end());
    args.push_back("--from-data-dir");
    for (const std::string& dir : DirsWithout(lost)) args.push_back(dir);
    return RunCli(args);
  }
  CliResult Verify(const std::vector<uint32_t>& lost, std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"verify", "lm"};
    args.insert(args.end(), more.begin(), more.end());
    args.push_back("--data-dir");
    for (const std::string& dir : DirsWithout(lost)) args.push_back(dir);
    return RunCli(args);
  }
  void ExpectRestored() {
    for (uint32_t rank = 0; rank < nodes_; ++rank) {
      char name[64];
      std::snprintf(name, sizeof(name), "rank-%05u-of-%05u.safetensors", rank, nodes_);
      const std::string expected =
          TestImage(Identity("lm", 1, 20, rank, nodes_), rows_ + 64 * rank).bytes();
      EXPECT_TRUE(ReadText(folder_ / ("out/" + std::string(name))) == expected)
          << name << " differs";
    }
  }

  TempFolder folder_;
  uint32_t nodes_ = 0;
  uint64_t rows_ = 0;
};

TEST_F(DecodeTest, AnyLostNodeOfFourIsDecoded) {
  Make(4, 1);
  for (uint32_t lost = 0; lost < 4; ++lost) {
    SCOPED_TRACE(lost);
    CliResult result = Restore({lost});
    EXPECT_EQ(result.exit_code, 0) << result.Shown();
    EXPECT_THAT(result.out, HasSubstr("parity group"));
    ExpectRestored();
  }
}

TEST_F(DecodeTest, PairsOfLostNodesOfEightAreDecoded) {
  Make(8, 2, 1000);
  for (const auto& lost : std::vector<std::vector<uint32_t>>{{0, 1}, {3, 6}, {0, 7}}) {
    CliResult result = Restore(lost);
    EXPECT_EQ(result.exit_code, 0) << result.Shown();
    ExpectRestored();
  }
}

TEST_F(DecodeTest, TooManyLostAreNamed) {
  Make(4, 1);
  CliResult result = Restore({1, 3});
  EXPECT_EQ(result.exit_code, 4) << result.Shown();
  EXPECT_THAT(result.err, AllOf(HasSubstr("ranks 1, 3 of a world of 4 are missing"),
                                HasSubstr("rank-1, parity-1, rank-3, parity-3 are missing"),
                                HasSubstr("survives the loss of 1")));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(DecodeTest, AShardThatIsFoundDamagedIsDecoded) {
  Make(4, 1);
  FlipBit(File(2, "rank-2.safetensors"), (1 << 20) + 9);
  CliResult result = Restore({});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.err, HasSubstr("trying peer on parity group"));
  ExpectRestored();
}

TEST_F(DecodeTest, ALostNodeAndBadChunksOnOthersAreDecoded) {
  Make(8, 2, 6000);
  FlipBit(File(5, "rank-5.safetensors"), 100'000);
  CliResult result = Restore({2});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  ExpectRestored();
}

TEST_F(DecodeTest, ADryRunShowsWhichShardsAreDecoded) {
  Make(4, 1);
  auto json = Restore({3}, {"--dry-run", "-o", "json"}).Json();
  EXPECT_EQ(json["shards"][3]["tier"], "peer");
  EXPECT_EQ(json["shards"][3]["data_dir"], "parity group");
  EXPECT_EQ(json["shards"][2]["tier"], "disk");
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(DecodeTest, ARemovedSealIsMissing) {
  Make(4, 1);
  EXPECT_EQ(Verify({}, {"--deep"}).exit_code, 0);
  fs::remove(File(0, "rank-0.seal"));
  CliResult result = Verify({}, {"--deep"});
  EXPECT_EQ(result.exit_code, 2) << result.Shown();
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("7 ok"), HasSubstr("1 missing (1 of them decoded from parity)"),
                    testing::ContainsRegex("MISSING lm/1-20/rank-0 .*its data exists here, but its "
                                           "seal does not: decoded from its parity group")));
  EXPECT_EQ(Restore({}).exit_code, 0);
  ExpectRestored();
  // The result is the same when the data is removed as well, and with only that node's directories.
  fs::remove(File(0, "rank-0.safetensors"));
  EXPECT_EQ(Verify({}).exit_code, 2);
  result = Verify({1, 2, 3});
  EXPECT_EQ(result.exit_code, 2) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("MISSING lm/1-20/rank-0"));
}

TEST_F(DecodeTest, ASealOfAnotherStepIsDamage) {
  Make(4, 1);
  const ShardSeal seal = TestImage(Identity("lm", 1, 19, 0, 4), 100).Seal();
  WriteText(File(0, "rank-0.seal"), EncodeSeal(seal));
  CliResult result = Verify({});
  EXPECT_EQ(result.exit_code, 2) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("is the seal of lm/1-19/rank-0"));
}

TEST_F(DecodeTest, ALostNodesShardsAreMissing) {
  Make(4, 1);
  CliResult result = Verify({3});
  EXPECT_EQ(result.exit_code, 2) << result.Shown();
  EXPECT_THAT(result.out, AllOf(testing::ContainsRegex("MISSING lm/1-20/rank-3 .*on node n3: its "
                                                       "parity group can decode it"),
                                HasSubstr("MISSING lm/1-20/parity-3")));
  result = Verify({1, 3}, {"-o", "json"});
  EXPECT_EQ(result.exit_code, 2);
  const nlohmann::json document = result.Json();
  std::map<std::string, bool> decodable;
  for (const auto& shard : document["shards"]) {
    if (shard.contains("decodable")) decodable[shard["shard"]] = shard["decodable"];
  }
  EXPECT_THAT(decodable, ::testing::Contains(::testing::Pair("rank-3", false)));
}

TEST_F(DecodeTest, DirectoriesOfOneNodeAreCheckedForItsOwnShards) {
  Make(4, 1);
  CliResult result = Verify({0, 1, 3}, {"--deep"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("2 shards checked, every byte: 2 ok"));
  fs::remove(File(2, "parity-2.seal"));
  EXPECT_EQ(Verify({0, 1, 3}).exit_code, 2);
}

TEST(WithoutParityTest, AnIncompleteCheckIsNotReportedAsOk) {
  TempFolder folder;
  MakeDataDirs({folder / "n0"}, {0, 1}, 4);
  CliResult one = RunCli({"verify", "lm", "--data-dir", folder / "n0"});
  EXPECT_EQ(one.exit_code, 3) << one.Shown();
  EXPECT_THAT(one.out, HasSubstr("ranks 2, 3 are not in these data directories"));
  MakeDataDirs({folder / "n1"}, {2, 3}, 4);
  EXPECT_EQ(RunCli({"verify", "lm", "--data-dir", folder / "n0", folder / "n1"}).exit_code, 0);
  fs::remove(folder / "n0/lm/v1-20/rank-0.seal");
  fs::remove(folder / "n0/lm/v1-20/rank-0.safetensors");
  CliResult two = RunCli({"verify", "lm", "--data-dir", folder / "n0", folder / "n1"});
  EXPECT_EQ(two.exit_code, 2) << two.Shown();
  EXPECT_THAT(two.out, HasSubstr("MISSING lm/1-20/rank-0"));
}

}  // namespace
}  // namespace holdfast::cli
