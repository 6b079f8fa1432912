#include "coordinator/restart/runs.h"

#include "coordinator/restart/incidents.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
using RunsModule = RunModuleTest;

TEST_F(RunsModule, ARunFinishesWhenEveryWorkerEndsWell) {
  for (uint32_t rank = 0; rank < 3; ++rank) {
    AdvanceRun(context, run());
    EXPECT_EQ(run().record.phase, RunPhase::kRunning);
    node(rank).workers[0].phase = WorkerPhase::kEnded;
  }
  AdvanceRun(context, run());
  EXPECT_EQ(run().record.phase, RunPhase::kFinished);
}

TEST_F(RunsModule, ALaunchRunsWhenAllWorkersDoAndStrayOnesDoNotCount) {
  const IncidentRecord& incident = OpenIncident(context, "gpt", Failure{});
  run().record.phase = RunPhase::kStarting;
  node(1).workers.push_back(node(2).workers[0]);  // not placed there
  node(2).workers.clear();
  AdvanceRun(context, run());
  EXPECT_EQ(run().record.phase, RunPhase::kStarting);
  EXPECT_EQ(incident.place_ms, std::nullopt);
  node(2).workers.push_back(node(1).workers[1]);
  AdvanceRun(context, run());
  EXPECT_EQ(run().record.phase, RunPhase::kRunning);
  EXPECT_GE(incident.place_ms, 0);
}

TEST_F(RunsModule, AFailedLaunchIsHandled) {
  node(1).workers[0].phase = WorkerPhase::kEnded;
  node(1).workers[0].signal = SIGKILL;
  AdvanceRun(context, run());
  EXPECT_EQ(run().record.launches, 2U);
  EXPECT_EQ(table.incidents.size(), 1U);
}

TEST_F(RunsModule, AStopWithoutAnyVersionWaitsForNone) {
  run().record.phase = RunPhase::kStopping;
  run().stop_at = context.at.now + seconds(5);
  AdvanceRun(context, run());
  EXPECT_EQ(run().record.phase, RunPhase::kStopped);
  EXPECT_EQ(run().record.why, "stopped; nothing was saved");
}

TEST_F(RunsModule, AStopEndsWithTheVersionOnDiskOrAtItsDeadline) {
  run().record.phase = RunPhase::kStopping;
  run().stop_target = VersionId{Incarnation{2}, Step{10}};
  run().stop_at = context.at.now + seconds(5);
  AdvanceRun(context, run());
  EXPECT_EQ(run().record.phase, RunPhase::kStopping);
  coord::Run other = run();
  table.progress["gpt"].disk = {Incarnation{2}, Step{10}};
  AdvanceRun(context, run());
  EXPECT_EQ(run().record.why, "stopped; version 2-10 is on disk");
  run() = other;
  table.progress["gpt"].disk = {};
  Pass(seconds(5));
  AdvanceRun(context, run());
  EXPECT_EQ(run().record.phase, RunPhase::kStopped);
}

TEST_F(RunsModule, AWaitingRunLaunchesAfterItsPause) {
  run().record.phase = RunPhase::kWaiting;
  run().not_before = context.at.now + seconds(1);
  AdvanceRun(context, run());
  EXPECT_EQ(run().record.phase, RunPhase::kWaiting);
  Pass(seconds(1));
  AdvanceRun(context, run());
  EXPECT_EQ(run().record.phase, RunPhase::kStarting);
}

}  // namespace
}  // namespace holdfast::coord
