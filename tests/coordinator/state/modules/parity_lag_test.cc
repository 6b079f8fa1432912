#include "coordinator/state/parity_lag.h"

#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
constexpr int64_t kSecond = 1'000'000'000;
using ::testing::ElementsAre;

/// Four ranks on four nodes, in two parity groups of two.
class ParityLagModule : public ModuleTest {
 protected:
  void SetUp() override {
    MakeJob(4);
    options.peers.groups = {2, 1};
    PlanPeers(context, job());
    ASSERT_EQ(job().groups_of(Incarnation{2})->firsts.size(), 2U);
    context.at.wall_nanos = 1000 * kSecond;
  }
  VersionState& AddAt(uint64_t step, int64_t second, std::vector<Tier> tiers) {
    VersionState& version = AddCommitted(V(2, step), std::move(tiers));
    version.wall_nanos = second * kSecond;
    return version;
  }
  std::vector<ParityLag> Lags() { return ParityLags(context, job()); }
  /// Removes the parity of one member from a version.
  void RemoveParity(VersionState& version, uint32_t number) {
    const NodeIndex node = job().groups_of(Incarnation{2})->members[number].node;
    version.RemoveReplica(ParityRank(number), {node, Tier::kMemory});
  }
};

TEST_F(ParityLagModule, RanksOfProtectedGroupsHaveNoLag) {
  AddAt(10, 900, {Tier::kMemory, Tier::kPeer});
  EXPECT_THAT(Lags(), ElementsAre(ParityLag{}, ParityLag{}, ParityLag{}, ParityLag{}));
}

TEST_F(ParityLagModule, AGroupWithoutTheParityOfOneMemberIsBehind) {
  AddAt(10, 900, {Tier::kMemory, Tier::kPeer});
  RemoveParity(AddAt(20, 960, {Tier::kMemory, Tier::kPeer}), 1);
  RemoveParity(AddAt(30, 990, {Tier::kMemory, Tier::kPeer}), 0);
  const auto expect = [this](ParityLag first, ParityLag second) {
    const std::vector<ParityLag> lags = Lags();
    ASSERT_EQ(lags.size(), 4U);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      const bool in_first = job().groups_of(Incarnation{2})->by_rank[rank] < 2;
      EXPECT_EQ(lags[rank], in_first ? first : second) << rank;
    }
  };
  expect({2, 40'000}, {});
  RemoveParity(AddAt(40, 995, {Tier::kMemory, Tier::kPeer}), 2);
  expect({}, {1, 5'000});
}

TEST_F(ParityLagModule, OnlyWhatARankHasSealedCounts) {
  AddAt(10, 900, {Tier::kMemory, Tier::kPeer});
  AddAt(20, 970, {Tier::kMemory});
  VersionState& pending = Add(V(2, 30));
  Hold(pending, Rank{1}, {1, Tier::kMemory});
  EXPECT_THAT(Lags(), ElementsAre(ParityLag{1, 30'000}, ParityLag{2, 30'000}, ParityLag{1, 30'000},
                                  ParityLag{1, 30'000}));
}

TEST_F(ParityLagModule, AbortedVersionsAndOtherIncarnationsDoNotCount) {
  AddAt(10, 900, {Tier::kMemory});
  AddAt(20, 970, {Tier::kMemory}).phase = Phase::kAborted;
  VersionState& before = AddCommitted(V(1, 90), {Tier::kDisk});
  before.wall_nanos = 1 * kSecond;
  EXPECT_EQ(Lags()[0], (ParityLag{1, 100'000}));
}

TEST_F(ParityLagModule, AClockThatWentBackIsNoLag) {
  AddAt(10, 2000, {Tier::kMemory});
  EXPECT_EQ(Lags()[0], (ParityLag{1, 0}));
}

TEST_F(ParityLagModule, AJobWithoutGroupsHasNone) {
  MakeJob(4);
  AddCommitted(V(2, 10), {Tier::kMemory});
  EXPECT_TRUE(Lags().empty());
}

TEST_F(ParityLagModule, OnlyTheNewestVersionsAreExamined) {
  for (uint64_t step = 1; step <= kLagVersionsMax + 6; ++step) AddAt(step, 900, {Tier::kMemory});
  EXPECT_EQ(Lags()[0].versions, kLagVersionsMax);
}

}  // namespace
}  // namespace holdfast::coord
