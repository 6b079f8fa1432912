#include "coordinator/restart/causes.h"
#include "coordinator/restart/gpus.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
using CausesModule = RunModuleTest;

TEST_F(CausesModule, AKilledWorkerIsTheCauseAtOnce) {
  End(0, 1, 0, /*ago_ms=*/100);
  End(1, 0, SIGKILL, /*ago_ms=*/50);
  const auto failure = FindFailure(context, run());
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->what, "rank 1 on node n1 was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(failure->own_exit, "");
  EXPECT_EQ(failure->evidence.size(), 1U);
}

TEST_F(CausesModule, OfWorkersThatExitTheFirstIsTheCauseAfterASettleTime) {
  End(0, 1, 0, /*ago_ms=*/10);
  End(2, 3, 0, /*ago_ms=*/90);
  EXPECT_FALSE(FindFailure(context, run()).has_value());
  Pass(options.settle);
  const auto failure = FindFailure(context, run());
  ASSERT_TRUE(failure.has_value());
  EXPECT_THAT(failure->nodes, ::testing::ElementsAre("n2"));
  EXPECT_EQ(failure->own_exit, "exit code 3");
}

TEST_F(CausesModule, NoExitIsJudgedWhileANodeIsSilent) {
  End(0, 1, 0);
  EXPECT_FALSE(FindFailure(context, run()).has_value());
  Pass(options.settle);
  node(2).stream_ended = true;
  EXPECT_FALSE(FindFailure(context, run()).has_value());
  node(2).stream_ended = false;
  EXPECT_TRUE(FindFailure(context, run()).has_value());
}

TEST_F(CausesModule, AFailedGpuComesBeforeAKilledWorker) {
  GpuFailed event;
  event.node = "n2";
  event.agent_start = event.number = 1;
  event.xid = 79;
  RecordGpuError(context, event);
  End(0, 0, SIGKILL);
  End(2, 1, 0);
  EXPECT_THAT(FindFailure(context, run())->nodes, ::testing::ElementsAre("n2"));
}

TEST_F(CausesModule, ALostNodeHasItsPatience) {
  Lose(1);
  Pass(options.replace_after - milliseconds(1));
  EXPECT_FALSE(FindFailure(context, run()).has_value());
  Pass(milliseconds(1));
  EXPECT_EQ(FindFailure(context, run())->kind, "node lost");
  node(1).silent = true;
  EXPECT_FALSE(FindFailure(context, run()).has_value());
  Pass(options.replace_silent_after - options.replace_after);
  EXPECT_TRUE(FindFailure(context, run()).has_value());
}

TEST_F(CausesModule, ItIsReplacedLaterWhileOthersSealAndAtOnceWhenTheLaunchHasFailed) {
  Lose(1);
  Pass(options.replace_after);
  table.progress["gpt"].sealed_at = context.at.now;
  EXPECT_FALSE(FindFailure(context, run()).has_value());
  run().first_failure_at = context.at.now;
  EXPECT_EQ(FindFailure(context, run())->kind, "node lost");
}

TEST_F(CausesModule, NoNodeIsBlamedAfterAPauseOfTheCoordinator) {
  Lose(1);
  Pass(options.replace_after);
  table.grace_until = context.at.now + seconds(1);
  EXPECT_FALSE(FindFailure(context, run()).has_value());
  Pass(seconds(1));
  EXPECT_TRUE(FindFailure(context, run()).has_value());
}

TEST_F(CausesModule, ANodeThatDoesNotStartItsWorkersIsAvoided) {
  node(1).workers.clear();
  Pass(options.launch_timeout);
  const auto failure = FindFailure(context, run());
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->kind, "not started");
  EXPECT_TRUE(failure->avoid_nodes);
}

}  // namespace
}  // namespace holdfast::coord
