#include "coordinator/state/nodes.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class NodesModule : public ModuleTest {
 protected:
  NodeAttached Attach(const std::string& node, uint64_t start) {
    NodeAttached event;
    event.attach = 500 + start;
    event.node = node;
    event.agent_start = start;
    return event;
  }
  Status Report(NodeReported event) {
    event.request = 7;
    event.agent_start = 1;
    OnNodeReported(context, event);
    return Added<Reply>().back().outcome;
  }
};

TEST_F(NodesModule, ALaterStartOfTheAgentTakesOver) {
  AddCommitted(V(2, 10), {Tier::kMemory});
  OnNodeAttached(context, Attach("a", 2));
  ASSERT_EQ(Added<CloseAttach>().size(), 1U);
  EXPECT_EQ(Added<CloseAttach>()[0].attach, 100U);
  EXPECT_EQ(cluster.nodes[0].agent_start, 2U);
  EXPECT_TRUE(job().versions.at(V(2, 10)).ranks[0].replicas.empty());  // not in the inventory
  OnNodeAttached(context, Attach("a", 1));
  EXPECT_EQ(Added<CloseAttach>()[1].attach, 501U);
  EXPECT_EQ(cluster.nodes[0].agent_start, 2U);
}

// Relays name the stream of a report: one that was stopped may bring an old report late.
TEST_F(NodesModule, AReportOfAnEarlierStreamIsRefused) {
  NodeReported report;
  report.node = "a";
  report.epoch = options.epoch;
  report.attach = cluster.nodes[0].attach;
  EXPECT_TRUE(Report(report).ok());
  report.attach = cluster.nodes[0].attach - 1;
  EXPECT_EQ(Report(report).code(), ErrorCode::kFenced);
  report.attach.reset();  // an agent's own report
  EXPECT_TRUE(Report(report).ok());
}

TEST_F(NodesModule, NodesThatLeaveAreListed) {
  NodeReported report;
  report.node = "a";
  report.epoch = options.epoch;
  report.health.departing = true;
  EXPECT_TRUE(Report(report).ok());
  NodeAttached other = Attach("b", 2);
  other.health.departing = true;
  OnNodeAttached(context, other);
  EXPECT_EQ(cluster.leaving, (std::set<NodeIndex>{0, 1}));
  AdvanceNodes(context, {});
  EXPECT_EQ(cluster.leaving, (std::set<NodeIndex>{0, 1}));
  report.health.departing = false;
  EXPECT_TRUE(Report(report).ok());
  AdvanceNodes(context, {});
  EXPECT_EQ(cluster.leaving, (std::set<NodeIndex>{1}));
}

TEST_F(NodesModule, AnAgentFromALaterEpochIsRefused) {
  options.epoch = Epoch{3};
  NodeAttached event = Attach("x", 1);
  event.epoch_seen = Epoch{4};
  OnNodeAttached(context, event);
  EXPECT_EQ(Added<CloseAttach>().at(0).why.code(), ErrorCode::kFenced);
  EXPECT_EQ(FindNode(context, "x"), nullptr);
  EXPECT_EQ(cluster.refused.count("x"), 1U);
}

TEST_F(NodesModule, ASilentNodeIsProbedThenLost) {
  Pass(2 * options.node_lease / 5);
  AdvanceNodes(context, {});
  AdvanceNodes(context, {});
  EXPECT_EQ(SentTo<Welcome>(0).size(), 1U);
  Pass(options.node_lease);
  AdvanceNodes(context, {});
  ASSERT_EQ(Added<NodeDeclaredLost>().size(), 2U);
  EXPECT_TRUE(Added<NodeDeclaredLost>()[0].silent);
  EXPECT_FALSE(cluster.nodes[0].attached);
}

TEST_F(NodesModule, AStreamThatTheProbeEndsIsNotSilent) {
  OnNodeLost(context, {"b"});
  effects.clear();
  Pass(2 * options.node_lease / 5 + options.node_lease / 10);
  AdvanceNodes(context, {});
  EXPECT_EQ(SentTo<Welcome>(0).size(), 1U);
  Pass(options.node_lease / 2);  // a lease since the last report
  AdvanceNodes(context, {});
  EXPECT_TRUE(
      cluster.nodes[0].attached);  // the kernel reports the end of the stream a little later
  OnNodeDetached(context, {"a", 100});
  AdvanceNodes(context, {});
  ASSERT_EQ(Added<NodeDeclaredLost>().size(), 1U);
  EXPECT_FALSE(Added<NodeDeclaredLost>()[0].silent);
}

TEST_F(NodesModule, AClosedStreamLosesTheNodeAfterItsGrace) {
  OnNodeDetached(context, {"a", 99});  // an older stream
  OnNodeDetached(context, {"b", 101});
  Pass(options.detach_grace);
  AdvanceNodes(context, {});
  ASSERT_EQ(Added<NodeDeclaredLost>().size(), 1U);
  EXPECT_EQ(Added<NodeDeclaredLost>()[0].node, "b");
  EXPECT_FALSE(Added<NodeDeclaredLost>()[0].silent);
}

TEST_F(NodesModule, NoNodeIsLostForALeaseAfterASuspension) {
  Pass(options.node_lease * 2);
  AdvanceNodes(context, {.resumed = true});
  EXPECT_TRUE(cluster.nodes[0].attached);
  Pass(options.node_lease);
  AdvanceNodes(context, {});
  EXPECT_FALSE(cluster.nodes[0].attached);
}

TEST_F(NodesModule, ALostNodeTakesItsReplicasWithIt) {
  AddCommitted(V(2, 10), {Tier::kMemory, Tier::kDisk});
  OnNodeLost(context, {"b"});
  EXPECT_TRUE(job().versions.at(V(2, 10)).ranks[1].replicas.empty());
  EXPECT_EQ(job().versions.at(V(2, 10)).ranks[0].replicas.size(), 2U);
  EXPECT_TRUE(job().changed);
}

TEST_F(NodesModule, AReportOfAnotherEpochIsFenced) {
  NodeReported event;
  event.node = "a";
  event.epoch = Epoch{9};
  EXPECT_EQ(Report(event).code(), ErrorCode::kFenced);
  event.epoch = options.epoch;
  EXPECT_TRUE(Report(event).ok());
}

TEST_F(NodesModule, RemovalsAreAppliedBeforeNewReplicas) {
  AddCommitted(V(2, 10), {Tier::kDisk});
  NodeReported event;
  event.node = "a";
  event.removed.push_back({{"gpt", V(2, 10), Rank{0}}, Tier::kDisk});
  StoredReplica again = H(V(2, 10), 0, Tier::kDisk);
  again.digest = job().versions.at(V(2, 10)).ranks[0].digest;
  event.replicas.push_back(again);
  EXPECT_TRUE(Report(event).ok());
  EXPECT_EQ(job().versions.at(V(2, 10)).ranks[0].replicas.size(), 1U);
}

}  // namespace
}  // namespace holdfast::coord
