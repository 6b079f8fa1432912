#include "coordinator/state/queries.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using QueriesModule = ModuleTest;

TEST_F(QueriesModule, NodesShowWhatTheyHold) {
  MakeGroup(1);
  AddCommitted(V(2, 10), {Tier::kMemory, Tier::kPeer, Tier::kDisk});
  const std::vector<NodeStatus> nodes = NodeStatuses(context);
  ASSERT_EQ(nodes.size(), 2U);
  for (const NodeStatus& node : nodes) {
    EXPECT_EQ(node.held_memory_bytes, 4096U);
    EXPECT_EQ(node.held_disk_bytes, 4096U);
    EXPECT_EQ(node.held_parity_bytes, 4096U);
    EXPECT_EQ(node.memberships.size(), 1U);
  }
}

TEST_F(QueriesModule, JobsShowTheirNewestVersionsByTier) {
  AddCommitted(V(2, 10), {Tier::kDisk});
  AddCommitted(V(2, 20), {Tier::kMemory});
  Lose(1);
  AddCommitted(V(2, 5), {Tier::kDisk});
  const auto jobs = JobStatuses(context, "");
  ASSERT_TRUE(jobs.has_value());
  EXPECT_EQ((*jobs)[0].committed[Tier::kMemory], V(2, 20));
  EXPECT_EQ((*jobs)[0].committed[Tier::kDisk], V(2, 10));
  EXPECT_EQ((*jobs)[0].restorable, V(2, 5));
  EXPECT_THAT((*jobs)[0].not_restorable_why, ::testing::HasSubstr("rank 1"));
  EXPECT_EQ(JobStatuses(context, "other").error().code(), ErrorCode::kNotFound);
}

TEST_F(QueriesModule, VersionsExplainWhyTheyCannotBeRestored) {
  AddCommitted(V(2, 10), {Tier::kDisk});
  Add(V(2, 20)).phase = Phase::kAborted;
  const auto versions = VersionStatuses(context, "gpt");
  ASSERT_TRUE(versions.has_value());
  ASSERT_EQ(versions->size(), 2U);
  EXPECT_EQ((*versions)[0].why_not, "not every rank saved it");
  EXPECT_TRUE((*versions)[1].restorable);
  EXPECT_EQ((*versions)[1].survives, "full power cut");
}

TEST_F(QueriesModule, APlanNamesTheNearestReplicaAndAllReplicasOnDemand) {
  AddCommitted(V(2, 10), {Tier::kMemory, Tier::kDisk});
  const auto nearest = PlanRestore(context, "gpt", {}, std::nullopt);
  ASSERT_TRUE(nearest.has_value());
  ASSERT_EQ(nearest->sources.size(), 2U);
  EXPECT_EQ(nearest->sources[0].tier, Tier::kMemory);
  const auto on_disk = PlanRestore(context, "gpt", V(2, 10), Tier::kDisk);
  ASSERT_TRUE(on_disk.has_value());
  EXPECT_EQ(on_disk->sources[1].tier, Tier::kDisk);
  EXPECT_EQ(PlanAllReplicas(context, "gpt", V(2, 10))->sources.size(), 4U);
  Lose(1);
  EXPECT_FALSE(PlanRestore(context, "gpt", V(2, 10), std::nullopt).has_value());
  EXPECT_FALSE(PlanAllReplicas(context, "gpt", V(2, 10)).has_value());
  EXPECT_TRUE(PlanAllReplicas(context, "gpt", V(2, 10), /*as_is=*/true).has_value());
}

}  // namespace
}  // namespace holdfast::coord
