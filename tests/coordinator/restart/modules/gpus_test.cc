#include "coordinator/restart/gpus.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
class GpusModule : public RunModuleTest {
 protected:
  void Report(uint32_t xid, uint64_t number = 1) {
    GpuFailed event;
    event.node = "n1";
    event.agent_start = 1;
    event.number = number;
    event.xid = xid;
    RecordGpuError(context, event);
  }
};

TEST_F(GpusModule, ABrokenGpuMakesItsNodeSuspectForADay) {
  Report(79);
  EXPECT_THAT(SuspectNodes(context), ::testing::ElementsAre("n1"));
  EXPECT_EQ(Added<PutSuspect>().size(), 1U);
  ASSERT_EQ(table.incidents.size(), 1U);
  EXPECT_EQ(table.incidents.at(1).job, "gpt");
  Pass(std::chrono::hours(24));
  EXPECT_TRUE(SuspectNodes(context).empty());
}

TEST_F(GpusModule, AnErrorOfTheProgramIsOnlyEvidence) {
  Report(13);
  EXPECT_TRUE(SuspectNodes(context).empty());
  EXPECT_FALSE(HardwareFailedRecently(context, "n1"));
  Failure failure = FailureOn(1);
  AddGpuErrors(context, {"n1"}, failure);
  ASSERT_EQ(failure.evidence.size(), 1U);
  EXPECT_THAT(failure.evidence[0], ::testing::HasSubstr("Xid 13"));
}

TEST_F(GpusModule, AnErrorIsACauseForAMinuteAndEvidenceForTen) {
  Report(94);
  Pass(seconds(59));
  EXPECT_TRUE(HardwareFailedRecently(context, "n1"));
  Pass(seconds(1));
  EXPECT_FALSE(HardwareFailedRecently(context, "n1"));
  Failure failure = FailureOn(1);
  Pass(std::chrono::minutes(9));
  AddGpuErrors(context, {"n1"}, failure);
  EXPECT_TRUE(failure.evidence.empty());
}

TEST_F(GpusModule, ARepeatedReportCountsOnce) {
  Report(79);
  Report(79);
  EXPECT_EQ(node(1).gpu_errors.size(), 1U);
  Report(48, 2);
  EXPECT_EQ(node(1).gpu_errors.size(), 2U);
}

TEST_F(GpusModule, AStoredErrorCountsAsBefore) {
  RestoreSuspect(context, {"n2", "Xid 79", context.at.wall_nanos - 30'000'000'000});
  EXPECT_THAT(SuspectNodes(context), ::testing::ElementsAre("n2"));
  EXPECT_TRUE(HardwareFailedRecently(context, "n2"));
  ClearSuspect(context, "n2");
  EXPECT_TRUE(SuspectNodes(context).empty());
  EXPECT_EQ(Added<EraseSuspect>().size(), 1U);
}

}  // namespace
}  // namespace holdfast::coord
