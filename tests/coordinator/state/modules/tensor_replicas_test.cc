#include "coordinator/state/tensor_replicas.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using TensorReplicasModule = ModuleTest;

TEST_F(TensorReplicasModule, ADisputeNamesTheMinorityAndIsFoundOnce) {
  MakeJob(3);
  VersionState& first = Add(V(2, 10));
  first.samples[{"w", 0, 100}] = {{0, 7}, {1, 8}, {2, 7}};
  CompareTensorReplicas(context, job(), first);
  ASSERT_EQ(first.disputes.size(), 1U);
  EXPECT_THAT(first.disputes[0].odd, ::testing::ElementsAre(1U));
  EXPECT_THAT(first.disputes[0].others, ::testing::ElementsAre(0U, 2U));
  ASSERT_EQ(Added<Finding>().size(), 1U);
  EXPECT_EQ(Added<Finding>()[0].kind, "replicas differ");
  VersionState& second = Add(V(2, 11));
  second.samples[{"w", 100, 200}] = {{0, 7}, {1, 8}, {2, 7}};
  CompareTensorReplicas(context, job(), second);
  ASSERT_EQ(second.disputes.size(), 1U);  // adjacent bytes of the same ranks
  EXPECT_EQ(second.disputes[0].bytes.last, 200U);
  EXPECT_EQ(Added<Finding>().size(), 1U);
}

TEST_F(TensorReplicasModule, EqualBytesEndTheirPartOfADispute) {
  VersionState& first = Add(V(2, 10));
  first.samples[{"w", 0, 300}] = {{0, 7}, {1, 8}};
  CompareTensorReplicas(context, job(), first);
  EXPECT_TRUE(first.disputes[0].others.empty());  // no majority
  VersionState& second = Add(V(2, 11));
  second.samples[{"w", 100, 200}] = {{0, 7}, {1, 7}};
  CompareTensorReplicas(context, job(), second);
  ASSERT_EQ(second.disputes.size(), 2U);
  EXPECT_EQ(second.disputes[0].bytes.last, 100U);
  EXPECT_EQ(second.disputes[1].bytes.first, 200U);
}

}  // namespace
}  // namespace holdfast::coord
