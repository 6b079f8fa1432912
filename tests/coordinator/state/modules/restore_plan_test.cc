#include "coordinator/state/restore_plan.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using RestorePlanModule = ModuleTest;

TEST_F(RestorePlanModule, TheBarrierWaitsForEveryNodeThatMayHaveReplicas) {
  EXPECT_TRUE(BarrierOpen(context, job()));
  const NodeIndex earlier = MakeNode("old");
  job().nodes_before.insert(earlier);
  Lose(earlier);
  EXPECT_FALSE(BarrierOpen(context, job()));
  Pass(options.node_lease);
  EXPECT_TRUE(BarrierOpen(context, job()));
}

TEST_F(RestorePlanModule, RanksThatNeverRestoreDelayRepairsForAMinute) {
  EXPECT_TRUE(IsRestoring(context, job()));
  Pass(std::chrono::seconds(60));
  EXPECT_FALSE(IsRestoring(context, job()));
  job().plan.Wait({7, Rank{0}, context.at.now});
  EXPECT_TRUE(IsRestoring(context, job()));
}

TEST_F(RestorePlanModule, ARankThatMovesIsPreparedAgain) {
  SwitchCandidate(job(), V(1, 10));
  ASSERT_EQ(job().plan.tasks.size(), 2U);
  job().plan.tasks[0].phase = RestoreTask::Phase::kReady;
  job().plan.ready = 1;
  PlaceRank(job(), Rank{0}, 0);
  EXPECT_EQ(job().plan.ready, 1U);
  PlaceRank(job(), Rank{0}, 1);
  EXPECT_EQ(job().plan.ready, 0U);
  EXPECT_EQ(job().plan.tasks[0].phase, RestoreTask::Phase::kIdle);
  EXPECT_EQ(job().unrecorded, 0U);  // the node is known
  PlaceRank(job(), Rank{0}, MakeNode("new"));
  EXPECT_EQ(job().unrecorded, 1U);
}

TEST_F(RestorePlanModule, ALostNodeResetsItsTasksAndTheSameAgentKeepsReadyOnes) {
  SwitchCandidate(job(), V(1, 10));
  RestoreTask& task = job().plan.tasks[0];
  task.phase = RestoreTask::Phase::kReady;
  task.target = 0;
  job().plan.involved[0] = {Rank{0}};
  job().plan.ready = 1;
  job().plan.unusable[V(1, 9)] = "no";
  FailRestoreTasksOf(context, job(), 0, /*keep_ready=*/true);
  EXPECT_EQ(job().plan.ready, 1U);
  EXPECT_TRUE(job().plan.unusable.empty());
  FailRestoreTasksOf(context, job(), 0, /*keep_ready=*/false);
  EXPECT_EQ(job().plan.ready, 0U);
}

TEST_F(RestorePlanModule, ReshardsMayWaitOn) {
  job().plan.Wait({7, Rank{0}, context.at.now});
  job().plan.Wait({8, Rank{1}, context.at.now, /*reshard=*/true});
  RefuseWaiters(context, job(), FencedError("over"), /*include_reshards=*/false);
  ASSERT_EQ(Added<Reply>().size(), 1U);
  EXPECT_EQ(Added<Reply>()[0].request, 7U);
  EXPECT_EQ(job().plan.reshards.size(), 1U);
}

}  // namespace
}  // namespace holdfast::coord
