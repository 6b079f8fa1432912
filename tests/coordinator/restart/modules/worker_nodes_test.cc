#include "coordinator/restart/worker_nodes.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
using WorkerNodesModule = RunModuleTest;

TEST_F(WorkerNodesModule, ANodeThatAttachesGetsItsDirectivesAgain) {
  NodeAttached event;
  event.node = "n1";
  event.attach = 101;
  event.agent_start = 2;
  event.worker_address = "10.0.0.1";
  event.workers = node(1).workers;
  event.workers[0].job = "gone";
  RecordAttached(context, event);
  const std::vector<SetWorkers> sent = SentTo(1);
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(sent[0].job, "gone");
  EXPECT_EQ(sent[0].ranks, 0U);
  EXPECT_EQ(sent[1].run_id, "run-1.1");
}

TEST_F(WorkerNodesModule, OnlyAReportWithOtherWorkersMatters) {
  NodeReported event;
  event.node = "n1";
  event.agent_start = 1;
  event.workers = node(1).workers;
  EXPECT_FALSE(RecordReport(context, event));
  event.workers[0].phase = WorkerPhase::kEnded;
  EXPECT_TRUE(RecordReport(context, event));
  event.agent_start = 2;
  event.workers.clear();
  EXPECT_FALSE(RecordReport(context, event));
  EXPECT_EQ(node(1).workers.size(), 1U);
}

TEST_F(WorkerNodesModule, NodesLostWithinALeaseAreMarkedTogether) {
  RecordLost(context, {"n0", "silent", true});
  EXPECT_TRUE(node(0).silent);
  EXPECT_FALSE(node(0).lost_together);
  Pass(options.node_lease);
  RecordLost(context, {"n1", "silent", true});
  EXPECT_TRUE(node(0).lost_together);
  EXPECT_TRUE(node(1).lost_together);
  Pass(options.node_lease + milliseconds(1));
  RecordLost(context, {"n2", "silent", true});
  EXPECT_FALSE(node(2).lost_together);
}

TEST_F(WorkerNodesModule, AnOlderStreamDoesNotCount) {
  EXPECT_FALSE(RecordDetached(context, {"n1", 99}));
  EXPECT_FALSE(node(1).stream_ended);
  EXPECT_TRUE(RecordDetached(context, {"n1", 101}));
  EXPECT_TRUE(node(1).stream_ended);
}

}  // namespace
}  // namespace holdfast::coord
