#include "base/ids.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/random.h"

namespace holdfast {
namespace {

TEST(IdsTest, VersionsOrderByIncarnationThenStep) {
  VersionId old{Incarnation{1}, Step{500}};
  VersionId restarted{Incarnation{2}, Step{41}};
  EXPECT_LT(old, restarted);
  EXPECT_LT(restarted, (VersionId{Incarnation{2}, Step{42}}));
}

TEST(IdsTest, VersionTextRoundTripsAndHasOneSpelling) {
  Random random(7);
  for (int i = 0; i < 1000; ++i) {
    VersionId version{Incarnation{random.Next() >> random.Below(64)}, Step{random.Next()}};
    EXPECT_EQ(ParseVersionId(ToString(version)).value(), version);
  }
  for (const char* bad : {"", "-", "3-", "-3", "03-1", "3-01", "+3-1", "3-1 ", "3-1-2", "3--1",
                          "99999999999999999999-1", "a-b", "3/1"}) {
    EXPECT_FALSE(ParseVersionId(bad).has_value()) << bad;
  }
}

TEST(IdsTest, NamesAreSafeAsPathComponents) {
  for (const char* good : {"a", "gpt-3.5_run", "...", "-", "A.b"}) {
    EXPECT_TRUE(ValidateName("job", good).ok()) << good;
  }
  for (std::string bad : {"", ".", "..", "a/b", "../x", "a b", "ä", "a\n", "%2e%2e"}) {
    EXPECT_EQ(ValidateName("job", bad).code(), ErrorCode::kInvalidArgument) << bad;
  }
  EXPECT_TRUE(ValidateName("job", std::string(128, 'x')).ok());
  EXPECT_FALSE(ValidateName("job", std::string(129, 'x')).ok());
  EXPECT_FALSE(ValidateName("job", std::string("a\0b", 3)).ok());
  // Every single byte outside the table is refused.
  for (int c = 0; c < 256; ++c) {
    bool allowed = std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
    EXPECT_EQ(ValidateName("job", std::string("a") + static_cast<char>(c)).ok(), allowed && c < 128)
        << c;
  }
}

TEST(IdsTest, TiersRoundTrip) {
  for (Tier tier : {Tier::kMemory, Tier::kPeer, Tier::kDisk, Tier::kRemote}) {
    EXPECT_EQ(ParseTier(ToString(tier)).value(), tier);
  }
  EXPECT_FALSE(ParseTier("cloud").has_value());
}

TEST(IdsTest, AParityShardBelongsToNoRank) {
  for (uint32_t node : {0U, 1U, 7U, kWorldMax - 1, kParityRankBit - 1}) {
    const Rank rank = ParityRank(node);
    EXPECT_TRUE(IsParity(rank));
    EXPECT_EQ(ParityNode(rank), node);
    EXPECT_GT(rank, Rank{kWorldMax - 1}) << "never a trainer's rank";
  }
  for (uint32_t rank : {0U, 1U, kWorldMax - 1, kParityRankBit - 1}) {
    EXPECT_FALSE(IsParity(Rank{rank}));
  }
  const VersionId version{Incarnation{3}, Step{120}};
  EXPECT_EQ(ToString(ShardKey{"gpt", version, Rank{7}}), "gpt/3-120/rank-7");
  EXPECT_EQ(ToString(ShardKey{"gpt", version, ParityRank(2)}), "gpt/3-120/parity-2");
  EXPECT_EQ(ShardName(Rank{0}), "rank-0");
  EXPECT_EQ(ShardName(ParityRank(0)), "parity-0");
}

TEST(IdsTest, RankInWorldChecksRanksAndParity) {
  EXPECT_TRUE(RankInWorld(Rank{3}, 4));
  EXPECT_FALSE(RankInWorld(Rank{4}, 4));
  EXPECT_TRUE(RankInWorld(ParityRank(4), 4)) << "the world does not limit node numbers";
  EXPECT_TRUE(RankInWorld(ParityRank(kWorldMax - 1), 1));
  EXPECT_FALSE(RankInWorld(ParityRank(kWorldMax), 1));
}

TEST(ClockTest, FormatsUtc) {
  EXPECT_EQ(FormatUtc(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(FormatUtc(1'767'323'045'678'000'000), "2026-01-02T03:04:05.678Z");
}

TEST(RandomTest, IsReproducibleAndSpreads) {
  Random a(1);
  Random b(1);
  uint64_t ones = 0;
  for (int i = 0; i < 10'000; ++i) {
    uint64_t word = a.Next();
    EXPECT_EQ(word, b.Next());
    ones += static_cast<uint64_t>(__builtin_popcountll(word));
  }
  EXPECT_NEAR(static_cast<double>(ones), 320'000, 3'000);
  EXPECT_NE(RandomSeed(), RandomSeed());
  EXPECT_EQ(RandomHex(5).size(), 10U);
}

}  // namespace
}  // namespace holdfast
