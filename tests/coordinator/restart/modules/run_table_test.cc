#include "coordinator/restart/run_table.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
using RunTableModule = RunModuleTest;

TEST_F(RunTableModule, OnlyALaunchedRunHasItsNodes) {
  EXPECT_EQ(PlacedOn(context, "n1"), &run());
  EXPECT_EQ(PlacedOn(context, "n3"), nullptr);
  run().record.phase = RunPhase::kWaiting;
  EXPECT_EQ(PlacedOn(context, "n1"), nullptr);
  run().record.phase = RunPhase::kFailed;
  EXPECT_EQ(PlacedOn(context, "n1"), nullptr);
}

TEST_F(RunTableModule, WorkersOfEarlierLaunchesAreOldAndThoseOfAWaitingRunToo) {
  EXPECT_FALSE(OldWorkersRun(context, run()));
  node(1).workers[0].run_id = "run-1.0";
  EXPECT_TRUE(OldWorkersRun(context, run()));
  node(1).workers[0].phase = WorkerPhase::kEnded;
  EXPECT_FALSE(OldWorkersRun(context, run()));
  run().record.phase = RunPhase::kWaiting;
  EXPECT_TRUE(OldWorkersRun(context, run()));
}

TEST_F(RunTableModule, ARollbackOfTheTrainersBelongsToTheLaunch) {
  LineageRecord lineage;
  lineage.run_id = "run-1.1";
  EXPECT_TRUE(IsStartOf(run().record, lineage));
  lineage.run_id = "run-1.1+2";
  EXPECT_TRUE(IsStartOf(run().record, lineage));
  lineage.run_id = "run-1.12";
  EXPECT_FALSE(IsStartOf(run().record, lineage));
}

}  // namespace
}  // namespace holdfast::coord
