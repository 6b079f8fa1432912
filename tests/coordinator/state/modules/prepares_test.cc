#include "coordinator/state/prepares.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class PreparesModule : public ModuleTest {
 protected:
  PendingPrepare FromB(bool repair = false) {
    return {"gpt", V(2, 10), Rank{1}, {1, Tier::kDisk}, 0, Tier::kMemory, repair};
  }
};

TEST_F(PreparesModule, OnlyTheTargetTakesItsDirectiveOnce) {
  const uint64_t first = AddPrepare(context, FromB());
  const uint64_t second = AddPrepare(context, FromB());
  EXPECT_NE(first, second);
  EXPECT_FALSE(TakePrepare(context, 1, first).has_value());
  EXPECT_TRUE(TakePrepare(context, 0, first).has_value());
  EXPECT_FALSE(TakePrepare(context, 0, first).has_value());
  EXPECT_EQ(cluster.pending_prepares.count(second), 1U);
}

TEST_F(PreparesModule, ADamagedSourceNoLongerCounts) {
  VersionState& version = AddCommitted(V(2, 10), {Tier::kDisk});
  RecordSourceFailure(context, job(), FromB(), DataLossError("bad chunk"));
  EXPECT_TRUE(version.ranks[1].replicas.empty());
  ASSERT_EQ(version.damaged.size(), 1U);
  EXPECT_TRUE(version.damaged[0].readable);
  EXPECT_EQ(Added<Finding>().size(), 1U);
  RecordSourceFailure(context, job(), FromB(), DataLossError("bad chunk"));
  EXPECT_EQ(Added<Finding>().size(), 1U);
}

TEST_F(PreparesModule, AnAbsentSourceIsNotDamaged) {
  VersionState& version = AddCommitted(V(2, 10), {Tier::kDisk});
  RecordSourceFailure(context, job(), FromB(), NotFoundError("no such file"));
  EXPECT_TRUE(version.ranks[1].replicas.empty());
  EXPECT_TRUE(version.damaged.empty());
}

TEST_F(PreparesModule, ATransientFailureKeepsTheSource) {
  VersionState& version = AddCommitted(V(2, 10), {Tier::kDisk});
  RecordSourceFailure(context, job(), FromB(), UnavailableError("timed out"));
  EXPECT_EQ(version.ranks[1].replicas.size(), 1U);
  EXPECT_EQ(Added<Finding>().size(), 1U);
  RecordSourceFailure(context, job(), FromB(/*repair=*/true), UnavailableError("timed out"));
  EXPECT_EQ(Added<Finding>().size(), 1U);  // the repair is tried again
}

// A simulation found this: a repair to disk that failed there took the intact memory from the
// version, and the next restore took an older one.
TEST_F(PreparesModule, AFailedDiskOfTheTargetKeepsTheMemoryThatTheShardComesFrom) {
  VersionState& version = AddCommitted(V(2, 10), {Tier::kMemory});
  PendingPrepare repair = FromB(/*repair=*/true);
  repair.source.tier = Tier::kMemory;
  repair.into = Tier::kDisk;
  RecordSourceFailure(context, job(), repair, IoErrorError("rank-1.seal: input/output error"));
  EXPECT_EQ(version.ranks[1].replicas.size(), 1U);
  EXPECT_TRUE(version.damaged.empty());
  // A repair in place that fails is of the memory itself.
  repair.into = Tier::kMemory;
  RecordSourceFailure(context, job(), repair, IoErrorError("the bytes do not stay"));
  EXPECT_TRUE(version.ranks[1].replicas.empty());
}

}  // namespace
}  // namespace holdfast::coord
