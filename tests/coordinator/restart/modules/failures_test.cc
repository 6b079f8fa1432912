#include "coordinator/restart/failures.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
class FailuresModule : public RunModuleTest {
 protected:
  /// Makes the launch fail and the next one run.
  void Fail(const Failure& failure) {
    FailLaunch(context, run(), failure);
    if (HasEnded(run().record.phase)) return;
    run().record.phase = RunPhase::kRunning;
    ++run().record.fruitless;
  }
};

TEST_F(FailuresModule, AFailureRestartsAtOnceWithAnIncident) {
  FailLaunch(context, run(), FailureOn(1));
  EXPECT_EQ(run().record.phase, RunPhase::kStarting);
  EXPECT_EQ(run().record.budget_used, 1U);
  EXPECT_EQ(table.incidents.at(1).state, IncidentState::kOpen);
  EXPECT_THAT(table.incidents.at(1).plan, ::testing::HasSubstr("start again as run-1.2"));
}

TEST_F(FailuresModule, LaunchesWithoutProgressPauseLonger) {
  for (const auto& [fruitless, pause] : {std::pair(2U, 1), std::pair(3U, 2), std::pair(20U, 60)}) {
    run().record.phase = RunPhase::kRunning;
    run().record.fruitless = fruitless;
    run().strikes.clear();
    FailLaunch(context, run(), FailureOn(1));
    EXPECT_EQ(run().record.phase, RunPhase::kWaiting);
    EXPECT_EQ(run().not_before - context.at.now, seconds(pause)) << fruitless;
  }
}

TEST_F(FailuresModule, TheBudgetEndsTheRun) {
  run().record.spec.restarts_max = 1;
  run().record.budget_used = 1;
  Failure failure = FailureOn(1);
  failure.last_lines = "out of memory";
  FailLaunch(context, run(), failure);
  EXPECT_EQ(run().record.phase, RunPhase::kFailed);
  EXPECT_THAT(run().record.why, ::testing::HasSubstr("all 1 restarts are used up"));
  EXPECT_THAT(run().record.why, ::testing::HasSubstr("out of memory"));
}

TEST_F(FailuresModule, ExitsBeforeAnythingWasSavedAreTheJobsFault) {
  run().record.saved = false;
  Fail(FailureOn(1, "exit code 1"));
  Fail(FailureOn(2, "exit code 1"));
  EXPECT_TRUE(table.quarantine.empty());
  Fail(FailureOn(1, "exit code 1"));
  EXPECT_EQ(run().record.phase, RunPhase::kFailed);
  EXPECT_THAT(run().record.why, ::testing::HasSubstr("no node is blamed"));
  EXPECT_TRUE(table.quarantine.empty());
}

TEST_F(FailuresModule, ANodeThatBreaksThreeLaunchesIsQuarantined) {
  for (int i = 0; i < 2; ++i) Fail(FailureOn(1));
  EXPECT_TRUE(table.quarantine.empty());
  Fail(FailureOn(1));
  EXPECT_EQ(table.quarantine.count("n1"), 1U);
  EXPECT_EQ(Added<PutQuarantine>().size(), 1U);
}

TEST_F(FailuresModule, ProgressForgivesStrikes) {
  for (int i = 0; i < 2; ++i) Fail(FailureOn(1));
  run().committed = true;
  Fail(FailureOn(1));
  EXPECT_TRUE(table.quarantine.empty());
}

TEST_F(FailuresModule, AStuckWorkerQuarantinesItsNodeAtOnce) {
  Failure failure = FailureOn(1);
  failure.kind = "worker stuck";
  Fail(failure);
  EXPECT_EQ(table.quarantine.count("n1"), 1U);
}

TEST_F(FailuresModule, AStoppingRunDoesNotRestart) {
  run().record.phase = RunPhase::kStopping;
  FailLaunch(context, run(), FailureOn(1));
  EXPECT_EQ(run().record.phase, RunPhase::kStopped);
}

}  // namespace
}  // namespace holdfast::coord
