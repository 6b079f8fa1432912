#include "coordinator/state/flush.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class FlushModule : public ModuleTest {
 protected:
  std::map<RepairKey, Repair> Plan() {
    std::map<RepairKey, Repair> missing;
    PlanFlush(context, job(), missing);
    return missing;
  }
};

TEST_F(FlushModule, TheNewestVersionIsFlushedWhenNoneFollows) {
  AddCommitted(V(2, 10), {Tier::kMemory});
  EXPECT_TRUE(Plan().empty());
  Pass(options.flush_after * 30);  // the disks' target makes no progress
  const auto missing = Plan();
  ASSERT_EQ(missing.size(), 2U);
  EXPECT_EQ(missing.begin()->first.tier, Tier::kDisk);
  EXPECT_EQ(missing.begin()->second.target, 0U);
}

TEST_F(FlushModule, ItIsFlushedAtOnceWhenATrainerWaitsOrTheJobIsOver) {
  AddCommitted(V(2, 10), {Tier::kMemory});
  job().wanted = V(2, 10);
  EXPECT_EQ(Plan().size(), 2U);
  job().wanted = {};
  job().phase = JobPhase::kEnded;
  EXPECT_EQ(Plan().size(), 2U);
}

TEST_F(FlushModule, NodesThatSkipTheStepDoNotFlushItWhileTheJobRuns) {
  AddCommitted(V(2, 10), {Tier::kMemory});
  Pass(options.flush_after * 30);
  cluster.nodes[1].disk_every = 20;
  EXPECT_TRUE(Plan().empty());
  cluster.nodes[1].disk_every = 5;
  EXPECT_EQ(Plan().size(), 2U);
}

TEST_F(FlushModule, ParityOfARunningJobFollowsWhateverStepsItsNodesWriteToDisk) {
  MakeGroup(1);
  AddCommitted(V(2, 10), {Tier::kMemory});
  cluster.nodes[1].disk_every = 20;
  job().targets[Tier::kPeer].Restart(Step{10});
  Pass(options.flush_after);
  EXPECT_TRUE(Plan().empty());  // the peers still take the version

  // The target has passed the version: the peers took an older one meanwhile.
  job().targets[Tier::kPeer].Restart(Step{11});
  StartFlush(context, job());
  EXPECT_EQ(job().targets[Tier::kPeer].step(), Step{10});
  EXPECT_TRUE(job().job_state_changed);
  // If the peers fail, repairs follow, and the target is not set back again.
  job().targets[Tier::kPeer].Restart(Step{11});
  StartFlush(context, job());
  EXPECT_EQ(job().targets[Tier::kPeer].step(), Step{11});
  EXPECT_TRUE(job().repair_due);
  const auto missing = Plan();
  EXPECT_EQ(missing.size(), 2U);
  for (const auto& [key, repair] : missing) EXPECT_TRUE(IsParity(key.rank));
}

TEST_F(FlushModule, ParityFollowsAndFailedTiersAreTriedAgain) {
  MakeGroup(1);
  VersionState& version = AddCommitted(V(2, 10), {Tier::kMemory, Tier::kDisk});
  version.failed_tiers = TierBit(Tier::kPeer);
  job().phase = JobPhase::kEnded;
  const auto missing = Plan();
  ASSERT_EQ(missing.size(), 2U);
  for (const auto& [key, repair] : missing) {
    EXPECT_TRUE(IsParity(key.rank));
    EXPECT_EQ(key.tier, Tier::kMemory);
  }
  EXPECT_EQ(version.failed_tiers, 0U);
  EXPECT_EQ(Added<PutVersion>().size(), 1U);
}

TEST_F(FlushModule, OperatorsSeeWhatANewestVersionLacks) {
  MakeGroup(1);
  AddCommitted(V(2, 10), {Tier::kMemory});
  EXPECT_EQ(WhyNotDurable(context, job()), "");
  job().phase = JobPhase::kEnded;
  EXPECT_EQ(WhyNotDurable(context, job()),
            "version 2-10 is the newest and not on disk and not at tier peer");
}

TEST_F(FlushModule, AllRanksWriteTheNewestVersionWhenANodeLeaves) {
  AddCommitted(V(2, 10), {Tier::kMemory});
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, std::nullopt);
  cluster.nodes[1].health.departing = true;
  cluster.leaving = {1};
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, V(2, 10));
  EXPECT_TRUE(job().job_state_changed);
  // A newer version does not replace the flushed one while that can still reach the disks: nodes
  // that write different steps commit none.
  VersionState& newer = AddCommitted(V(2, 11), {Tier::kMemory});
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, V(2, 10));
  job().versions.at(V(2, 10)).RemoveReplica(Rank{0}, {0, Tier::kMemory});
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, V(2, 11));
  newer.tiers |= TierBit(Tier::kDisk);
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, std::nullopt);
}

TEST_F(FlushModule, ADepartureAsksForNothingThatCannotReachTheDisks) {
  VersionState& version = AddCommitted(V(2, 10), {Tier::kMemory});
  cluster.nodes[1].health.departing = true;
  cluster.leaving = {1};
  version.failed_tiers = TierBit(Tier::kDisk);
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, std::nullopt);
  version.failed_tiers = 0;
  cluster.nodes[1].attached = false;  // the agent has ended already
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, std::nullopt);
}

}  // namespace
}  // namespace holdfast::coord
