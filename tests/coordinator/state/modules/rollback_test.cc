#include "coordinator/state/rollback.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class RollbackModule : public ModuleTest {
 protected:
  void Request(RequestId request, uint32_t rank, std::optional<VersionId> wanted = {}) {
    RestoreWaiter waiter{request, Rank{rank}, context.at.now};
    waiter.wanted = wanted;
    job().plan.RollBack(waiter);
    AdvanceRollback(context, job());
  }
};

TEST_F(RollbackModule, TheNewestWaitsForEveryRank) {
  AddCommitted(V(2, 10), {Tier::kMemory});
  Request(7, 0);
  EXPECT_TRUE(Added<Reply>().empty());
  Request(8, 1);
  ASSERT_EQ(Added<Reply>().size(), 2U);
  EXPECT_EQ(Added<Reply>()[0].version, V(2, 10));
  EXPECT_EQ(job().plan.rolled_back_to, V(2, 10));
}

TEST_F(RollbackModule, ANamedVersionAbortsNewerPendingOnes) {
  AddCommitted(V(2, 10), {Tier::kMemory});
  VersionState& newer = Add(V(2, 11));
  Request(7, 0, V(2, 10));
  ASSERT_EQ(Added<Reply>().size(), 1U);
  EXPECT_TRUE(Added<Reply>()[0].outcome.ok());
  EXPECT_EQ(newer.phase, Phase::kAborted);
}

TEST_F(RollbackModule, ARankWithoutALocalReplicaIsRefused) {
  VersionState& version = AddCommitted(V(2, 10), {Tier::kMemory});
  version.RemoveReplica(Rank{1}, {1, Tier::kMemory});
  Hold(version, Rank{1}, {0, Tier::kMemory});
  Request(7, 1, V(2, 10));
  EXPECT_EQ(Added<Reply>()[0].outcome.code(), ErrorCode::kFailedPrecondition);
}

TEST_F(RollbackModule, AnEarlierIncarnationsVersionBecomesTheDecision) {
  AddCommitted(V(1, 10), {Tier::kDisk});
  Request(7, 0, V(1, 10));
  ASSERT_EQ(Added<PutLineage>().size(), 1U);
  EXPECT_EQ(Added<PutLineage>()[0].record.restored, V(1, 10));
  EXPECT_EQ(job().lineage().decision, Decision::kVersion);
}

}  // namespace
}  // namespace holdfast::coord
