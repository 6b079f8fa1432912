#include "coordinator/state/forgotten.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class ForgottenModule : public ModuleTest {
 protected:
  void SetUp() override {
    ModuleTest::SetUp();
    cluster.jobs.clear();
    ForgottenJob& forgotten = cluster.forgotten["gpt"];
    forgotten.upto = Incarnation{2};
    forgotten.left[0] = std::nullopt;
  }
};

TEST_F(ForgottenModule, ReplicasOfForgottenIncarnationsAreRejected) {
  EXPECT_TRUE(RejectForgotten(context, 0, H(V(2, 10), 0, Tier::kDisk)));
  EXPECT_FALSE(RejectForgotten(context, 0, H(V(3, 10), 0, Tier::kDisk)));
  SendForgotten(context);
  ASSERT_EQ(SentTo<JobState>(0).size(), 1U);
  EXPECT_TRUE(SentTo<JobState>(0)[0].forget);
  EXPECT_EQ(SentTo<JobState>(0)[0].incarnation, Incarnation{2});
  SendForgotten(context);
  EXPECT_EQ(SentTo<JobState>(0).size(), 1U);
}

TEST_F(ForgottenModule, TheRecordStaysUntilEveryReplicaIsGone) {
  RecordForgottenReplicas(context, 0, {H(V(2, 10), 0, Tier::kDisk)});
  EXPECT_TRUE(Added<EraseJob>().empty());
  OnForgottenRemoved(context, 0, RemovedReplica{{"gpt", V(2, 10), Rank{0}}, Tier::kDisk});
  EXPECT_EQ(Added<EraseJob>().size(), 1U);
  EXPECT_TRUE(cluster.forgotten.empty());
}

TEST_F(ForgottenModule, ANodeThatListsNothingHasNothingLeft) {
  cluster.forgotten["gpt"].left[1] = std::nullopt;
  RecordForgottenReplicas(context, 0, {});
  ASSERT_EQ(Added<PutJob>().size(), 1U);
  EXPECT_THAT(Added<PutJob>()[0].record.nodes_before, ::testing::ElementsAre("b"));
}

}  // namespace
}  // namespace holdfast::coord
