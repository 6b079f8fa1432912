#include "coordinator/state/forget.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class ForgetModule : public ModuleTest {
 protected:
  Reply Forget() {
    effects.clear();
    OnJobForgotten(context, {7, "gpt"});
    return Added<Reply>().at(0);
  }
};

TEST_F(ForgetModule, ARunningJobIsKept) {
  EXPECT_EQ(Forget().outcome.code(), ErrorCode::kFailedPrecondition);
  job().phase = JobPhase::kEnded;
  cluster.active_runs.insert("gpt");
  EXPECT_EQ(Forget().outcome.code(), ErrorCode::kFailedPrecondition);
  cluster.jobs.clear();
  EXPECT_EQ(Forget().outcome.code(), ErrorCode::kFailedPrecondition);
  cluster.active_runs.clear();
  EXPECT_EQ(Forget().outcome.code(), ErrorCode::kNotFound);
}

TEST_F(ForgetModule, ARunThatEndedBeforeATrainerJoinedIsErased) {
  cluster.jobs.clear();
  cluster.ended_runs.insert("gpt");
  EXPECT_TRUE(Forget().outcome.ok());
  ASSERT_EQ(Added<EraseRun>().size(), 1U);
  EXPECT_EQ(Added<EraseRun>()[0].job, "gpt");
  EXPECT_TRUE(Added<PutJob>().empty());
  EXPECT_EQ(Forget().outcome.code(), ErrorCode::kNotFound);
}

TEST_F(ForgetModule, AllRecordsAreErasedAndAbsentNodesAreNamed) {
  AddCommitted(V(2, 10), {Tier::kDisk});
  Lose(1);
  job().phase = JobPhase::kEnded;
  job().plan.Wait({9, Rank{0}, context.at.now});
  OnJobForgotten(context, {7, "gpt"});
  EXPECT_TRUE(cluster.jobs.empty());
  EXPECT_EQ(Added<EraseVersion>().size(), 1U);
  EXPECT_EQ(Added<EraseLineage>().size(), 2U);
  EXPECT_EQ(Added<EraseRun>().size(), 1U);
  ASSERT_EQ(Added<Reply>().size(), 2U);
  EXPECT_EQ(Added<Reply>()[0].request, 9U);
  EXPECT_THAT(Added<Reply>()[1].nodes, ::testing::ElementsAre("b"));
  ASSERT_EQ(Added<PutJob>().size(), 1U);
  EXPECT_EQ(Added<PutJob>()[0].record.forgotten_upto, Incarnation{2});
  EXPECT_EQ(cluster.forgotten.at("gpt").left.size(), 2U);
}

}  // namespace
}  // namespace holdfast::coord
