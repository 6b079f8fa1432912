#include "coordinator/state/under_protected.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using UnderProtectedModule = ModuleTest;

TEST_F(UnderProtectedModule, MissingShardsAreShownAfterATimeAndLostNodesAtOnce) {
  MakeGroup(1);
  VersionState& version = AddCommitted(V(2, 10), {Tier::kDisk});
  job().joined_at = context.at.now - std::chrono::hours(1);
  CountUnderProtected(context, job());
  ASSERT_EQ(job().under_protected.size(), 1U);
  EXPECT_EQ(job().under_protected.at(V(2, 10)).shards, 4U);
  EXPECT_EQ(job().under_protected.at(V(2, 10)).present, 2U);
  EXPECT_TRUE(UnderProtectedOf(context, job()).empty());
  Pass(std::chrono::seconds(15));
  CountUnderProtected(context, job());
  EXPECT_EQ(UnderProtectedOf(context, job()).size(), 1U);
  AddParity(version, Tier::kDisk);
  CountUnderProtected(context, job());
  EXPECT_TRUE(UnderProtectedOf(context, job()).empty());
  Lose(1);
  CountUnderProtected(context, job());
  ASSERT_EQ(UnderProtectedOf(context, job()).size(), 1U);
  EXPECT_THAT(UnderProtectedOf(context, job())[0].why, ::testing::HasSubstr("of node b (down)"));
}

}  // namespace
}  // namespace holdfast::coord
