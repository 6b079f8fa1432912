#include "coordinator/state/survivability.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using SurvivabilityModule = ModuleTest;
constexpr uint32_t kMemory = TierBit(Tier::kMemory);
constexpr uint32_t kDisk = TierBit(Tier::kDisk);

TEST_F(SurvivabilityModule, AMemberHasOnlyWhatIsOnItsOwnNode) {
  MakeJob(4);
  MakeGroup(1);
  VersionState& version = Add(V(2, 10));
  Hold(version, Rank{0}, {1, Tier::kMemory});
  EXPECT_FALSE(HasData(job(), version, 0, kAnyTier));
  Hold(version, Rank{0}, {0, Tier::kDisk});
  EXPECT_TRUE(HasData(job(), version, 0, kAnyTier));
  EXPECT_FALSE(HasData(job(), version, 0, kMemory));
  Hold(version, ParityRank(0), {1, Tier::kMemory});
  EXPECT_FALSE(HasParity(job(), version, 0, kAnyTier));
}

TEST_F(SurvivabilityModule, AGroupDecodesUpToItsParityAndCountsTheRest) {
  MakeJob(4);
  MakeGroup(1);
  VersionState& version = AddCommitted(V(2, 10), {Tier::kMemory, Tier::kPeer});
  EXPECT_EQ(PeerMargin(job(), version, kAnyTier), 1U);
  EXPECT_EQ(PeerMargin(job(), version, kDisk), std::nullopt);
  Lose(0);
  EXPECT_EQ(Erasures(job(), version, 0, kAnyTier), 1U);
  EXPECT_TRUE(CanDecode(job(), version, Rank{0}));
  EXPECT_TRUE(IsFullyAvailable(job(), version));
  EXPECT_EQ(PeerMargin(job(), version, kAnyTier), 0U);
  Lose(1);
  EXPECT_FALSE(CanDecode(job(), version, Rank{0}));
  EXPECT_FALSE(IsFullyAvailable(job(), version));
  EXPECT_TRUE(IsAvailable(job(), version, Rank{2}));
}

TEST_F(SurvivabilityModule, DamagedReplicasCountOnlyWhereTheyAreAskedFor) {
  MakeJob(4);
  MakeGroup(1);
  VersionState& version = AddCommitted(V(2, 10), {Tier::kMemory, Tier::kPeer});
  for (const uint32_t rank : {0U, 1U}) {
    version.RemoveReplica(Rank{rank}, {rank, Tier::kMemory});
    version.damaged.push_back({Rank{rank}, {rank, Tier::kMemory}, /*readable=*/true});
  }
  EXPECT_FALSE(IsFullyAvailable(job(), version));
  EXPECT_TRUE(MayBeFullyAvailable(job(), version));
  EXPECT_EQ(Erasures(job(), version, 0, kAnyTier | kIncludeDamaged), 0U);
  version.damaged[0].readable = version.damaged[1].readable = false;
  EXPECT_FALSE(MayBeFullyAvailable(job(), version));
}

TEST_F(SurvivabilityModule, PeerNeedsAllDataAndParityAtOneTier) {
  MakeJob(2);
  MakeGroup(1);
  VersionState& version = AddCommitted(V(2, 10), {Tier::kMemory});
  Hold(version, ParityRank(0), {job().groups_of(Incarnation{2})->members[0].node, Tier::kMemory});
  Hold(version, ParityRank(1), {job().groups_of(Incarnation{2})->members[1].node, Tier::kDisk});
  EXPECT_FALSE(IsCompleteAtPeer(job(), version));
  AddParity(version, Tier::kMemory);
  EXPECT_TRUE(IsCompleteAtPeer(job(), version));
}

}  // namespace
}  // namespace holdfast::coord
