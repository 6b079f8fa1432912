#include "coordinator/state/node_loss.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using NodeLossModule = ModuleTest;

TEST_F(NodeLossModule, TheImpactLeavesTheDataAsItIs) {
  AddCommitted(V(2, 10), {Tier::kDisk});
  VersionState& newest = AddCommitted(V(2, 20), {Tier::kMemory});
  Hold(job().versions.at(V(2, 10)), Rank{1}, {0, Tier::kDisk});
  const auto impacts = ImpactOfLosing(context, "gpt", {"b"});
  ASSERT_TRUE(impacts.has_value());
  EXPECT_FALSE((*impacts)[0].keeps);
  EXPECT_TRUE((*impacts)[0].stops);
  EXPECT_EQ((*impacts)[0].newest, V(2, 20));
  EXPECT_EQ((*impacts)[0].fallback, V(2, 10));
  EXPECT_TRUE(IsRestorable(job(), newest));
}

TEST_F(NodeLossModule, UnknownNamesAreNotFound) {
  EXPECT_EQ(ImpactOfLosing(context, "other", {"b"}).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(ImpactOfLosing(context, "gpt", {"x"}).error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace holdfast::coord
