#include "coordinator/state/passes.h"

#include "coordinator/state/commit.h"
#include "coordinator/state/restore_plan.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using ::testing::Contains;
using ::testing::Not;
using PassesModule = ModuleTest;

TEST_F(PassesModule, MarksAreClearedAndNothingIsSentTwice) {
  AddCommitted(V(2, 10), {Tier::kDisk});
  job().changed = job().job_state_changed = true;
  job().removals.insert({0, V(2, 5), Tier::kDisk});
  ApplyChanges(context);
  EXPECT_EQ(SentTo<JobState>(0).size(), 1U);
  EXPECT_EQ(SentTo<RemoveVersion>(0).size(), 1U);
  EXPECT_FALSE(job().changed || job().job_state_changed);
  const size_t before = effects.size();
  ApplyChanges(context);
  EXPECT_EQ(effects.size(), before);
}

TEST_F(PassesModule, TheJobStateComesBeforeTheRemoval) {
  job().job_state_changed = true;
  job().removals.insert({0, V(2, 5), Tier::kDisk});
  ApplyChanges(context);
  const std::vector<Send> sent = Added<Send>();
  ASSERT_GE(sent.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<JobState>(sent.front().directive));
  EXPECT_TRUE(std::holds_alternative<RemoveVersion>(sent.back().directive));
}

TEST_F(PassesModule, ABatchHasOneRecordOfAJob) {
  for (const char* name : {"x", "y", "z"}) {
    PlaceRank(job(), Rank{0}, MakeNode(name));
    ApplyChanges(context);
  }
  EXPECT_TRUE(Added<PutJob>().empty());
  FinishBatch(context);
  ASSERT_EQ(Added<PutJob>().size(), 1U);
  EXPECT_THAT(Added<PutJob>()[0].record.nodes_now, ::testing::IsSupersetOf({"x", "y", "z"}));
  FinishBatch(context);
  EXPECT_EQ(Added<PutJob>().size(), 1U);
}

// Each record of a job has the names of all its nodes.
TEST_F(PassesModule, WhileThousandsOfNodesJoinTheirNamesAreStoredAFewTimes) {
  constexpr size_t kNodes = 1000;
  size_t names = 0;
  for (size_t i = 0; i < kNodes; ++i) {
    PlaceRank(job(), Rank{0}, MakeNode("n" + std::to_string(i)));
    FinishBatch(context);
  }
  for (const PutJob& put : Added<PutJob>()) names += put.record.nodes_now.size();
  EXPECT_LE(names, 15 * kNodes);
  // The last ones are stored at the latest after a pause.
  context.at.now += std::chrono::milliseconds(100);
  FinishBatch(context);
  EXPECT_EQ(Added<PutJob>().back().record.nodes_now.size(), job().nodes_now.size());
  const size_t stored = Added<PutJob>().size();
  context.at.now += std::chrono::milliseconds(100);
  FinishBatch(context);
  EXPECT_EQ(Added<PutJob>().size(), stored);
}

TEST_F(PassesModule, ACommitIsStoredWithTheNodesOfItsReplicas) {
  for (int i = 0; i < 100; ++i) PlaceRank(job(), Rank{0}, MakeNode("n" + std::to_string(i)));
  FinishBatch(context);
  PlaceRank(job(), Rank{0}, MakeNode("late"));
  FinishBatch(context);
  ASSERT_THAT(Added<PutJob>().back().record.nodes_now, Not(Contains("late")));
  const NodeIndex late = cluster.node_names.at("late");
  for (const auto& [node, rank] : {std::pair(late, 0U), std::pair(NodeIndex{1}, 1U)}) {
    OnReplicasStored(context, node, {{{"gpt", V(2, 3), Rank{rank}, 2}, Tier::kMemory, 5, 6}},
                     false);
  }
  FinishBatch(context);
  ASSERT_EQ(Added<PutVersion>().size(), 1U);
  EXPECT_THAT(Added<PutJob>().back().record.nodes_now, Contains("late"));
}

// The coordinator ended after it had answered the join, and before it recorded the node.
TEST_F(PassesModule, ANodeThatWasNotRecordedIsFoundByItsReplica) {
  job().rank_nodes.assign(2, kNoNode);
  const NodeIndex late = MakeNode("late");
  OnReplicasStored(context, late, {{{"gpt", V(2, 3), Rank{0}, 2}, Tier::kMemory, 5, 6}}, true);
  FinishBatch(context);
  ASSERT_EQ(Added<PutJob>().size(), 1U);
  EXPECT_THAT(Added<PutJob>()[0].record.nodes_now, Contains("late"));
}

TEST_F(PassesModule, RepairsFollowABatch) {
  job().repair_due = true;
  ApplyChanges(context);
  EXPECT_TRUE(job().repair_due);
  job().joined_at -= std::chrono::minutes(2);  // no restore is expected
  FinishBatch(context);
  EXPECT_FALSE(job().repair_due);
}

TEST_F(PassesModule, AJobThatEndedLongAgoIsForgotten) {
  options.forget_after = std::chrono::hours(1);
  job().phase = JobPhase::kEnded;
  job().ended_at = context.at.now;
  for (Node& node : cluster.nodes) node.seen = context.at.now + std::chrono::hours(2);
  Pass(std::chrono::minutes(59));
  OnTick(context, {});
  EXPECT_EQ(cluster.jobs.size(), 1U);
  Pass(std::chrono::minutes(1));
  OnTick(context, {});
  EXPECT_TRUE(cluster.jobs.empty());
}

}  // namespace
}  // namespace holdfast::coord
