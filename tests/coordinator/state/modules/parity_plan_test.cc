#include "coordinator/state/parity_plan.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using ParityPlanModule = ModuleTest;

TEST_F(ParityPlanModule, APlanNeedsAllRanksTheirSlotsAndPeerAddresses) {
  EXPECT_EQ(WhyNoPeers(context, job()), "");
  job().ranks_joined = 1;
  EXPECT_EQ(WhyNoPeers(context, job()), "1 of 2 ranks have joined");
  job().ranks_joined = 2;
  job().slot_bytes[1] = 0;
  EXPECT_THAT(WhyNoPeers(context, job()), ::testing::HasSubstr("size of its slots"));
  job().slot_bytes[1] = 100;
  EXPECT_THAT(WhyNoPeers(context, job()), ::testing::HasSubstr("slots of 100 bytes"));
  job().slot_bytes[1] = 4096;
  cluster.nodes[1].peer_address.clear();
  EXPECT_EQ(WhyNoPeers(context, job()), "node b has no listener for its peers");
  cluster.nodes[1].peer_address = "unix:/b.peer";
  cluster.nodes[1].no_parity = true;
  EXPECT_EQ(WhyNoPeers(context, job()), "node b has peers.enabled = false");
  cluster.nodes[1].no_parity = false;
  job().rank_nodes[1] = 0;
  EXPECT_EQ(WhyNoPeers(context, job()), "all ranks are on one node");
  options.peers.enabled = false;
  EXPECT_EQ(WhyNoPeers(context, job()), "peers are disabled");
  PlanPeers(context, job());
  EXPECT_TRUE(job().lineage().peers.empty());
}

TEST_F(ParityPlanModule, AnIncarnationIsPlannedOnce) {
  MakeJob(4);
  PlanPeers(context, job());
  PlanPeers(context, job());
  ASSERT_EQ(Added<PutLineage>().size(), 1U);
  EXPECT_EQ(Added<PutLineage>()[0].change, LineageChange::kPlanned);
  const GroupIndex& groups = *job().groups_of(Incarnation{2});
  ASSERT_EQ(groups.members.size(), 4U);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(groups.members[groups.by_rank[rank]].node, rank);
    EXPECT_EQ(groups.by_node.at(rank), groups.by_rank[rank]);
  }
}

TEST_F(ParityPlanModule, ThePlanOfAnIncarnationWithoutVersionsIsErasedUnlessItIsTheLast) {
  job().incarnation = Incarnation{1};
  MakeGroup(1);
  PrunePlans(context, job());
  EXPECT_NE(job().groups_of(Incarnation{1}), nullptr);
  job().incarnation = Incarnation{2};
  MakeGroup(1);
  VersionState& version = Add(V(1, 10));
  PrunePlans(context, job());
  EXPECT_NE(job().groups_of(Incarnation{1}), nullptr);
  job().versions.erase(version.id);
  PrunePlans(context, job());
  EXPECT_EQ(job().groups_of(Incarnation{1}), nullptr);
  EXPECT_TRUE(job().lineages.at(Incarnation{1}).peers.empty());
  EXPECT_NE(job().groups_of(Incarnation{2}), nullptr);
}

TEST_F(ParityPlanModule, AgentsSeeAddressesAndWhatMembersHave) {
  MakeGroup(1);
  VersionState& version = AddCommitted(V(2, 10), {Tier::kMemory});
  const uint32_t of_b = job().groups_of(Incarnation{2})->by_rank[1];
  Lose(1);
  const auto group = GroupOf(context, job(), Incarnation{2}, 0, &version);
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(group->layout().parity_count(), 1U);
  ASSERT_EQ(group->members().size(), 2U);
  for (const PlanMember& member : group->members()) {
    const bool lost = member.number == of_b;
    EXPECT_EQ(member.address.empty(), lost) << member.node;
    EXPECT_EQ(member.has_data, !lost) << member.node;
    EXPECT_FALSE(member.has_parity) << member.node;
  }
}

TEST_F(ParityPlanModule, TheMembersOfANodesGroupGetItsState) {
  MakeJob(4);
  options.peers.groups = {2, 1};
  PlanPeers(context, job());
  ASSERT_EQ(job().lineage().peers.size(), 2U);
  SendGroupsOf(context, 0);
  EXPECT_EQ(job().job_state_to.size(), 2U);
  EXPECT_EQ(job().job_state_to.count(0), 1U);
}

}  // namespace
}  // namespace holdfast::coord
