#include "coordinator/state/reshard.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using ReshardModule = ModuleTest;

TEST_F(ReshardModule, TheTierIsTheSlowestThatAnyRankReads) {
  VersionState& version = AddCommitted(V(2, 10), {Tier::kMemory, Tier::kDisk});
  EXPECT_EQ(ReshardTier(version), Tier::kMemory);
  version.RemoveReplica(Rank{1}, {1, Tier::kMemory});
  EXPECT_EQ(ReshardTier(version), Tier::kDisk);
}

TEST_F(ReshardModule, ARankWaitsWhileNodesMayReturn) {
  VersionState& version = AddCommitted(V(2, 10), {Tier::kMemory});
  const RestoreWaiter waiter{7, Rank{0}, context.at.now, /*reshard=*/true};
  EXPECT_TRUE(AnswerReshard(context, job(), version, waiter));
  EXPECT_TRUE(Added<Reply>()[0].outcome.ok());
  Lose(1);
  EXPECT_FALSE(AnswerReshard(context, job(), version, waiter));
  Pass(options.node_lease);
  EXPECT_TRUE(AnswerReshard(context, job(), version, waiter));
  EXPECT_EQ(Added<Reply>()[1].outcome.code(), ErrorCode::kFailedPrecondition);
}

}  // namespace
}  // namespace holdfast::coord
