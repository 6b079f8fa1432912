#include "coordinator/state/versions.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using VersionsModule = ModuleTest;

TEST_F(VersionsModule, AVersionWithoutARecordIsDeadInThreeCases) {
  EXPECT_FALSE(IsDead(job(), V(2, 10)));
  EXPECT_TRUE(IsDead(job(), V(1, 10)));
  job().abort_floor = Step{10};
  EXPECT_TRUE(IsDead(job(), V(2, 10)));
  EXPECT_FALSE(IsDead(job(), V(2, 11)));
  Add(V(2, 12));
  EXPECT_FALSE(IsDead(job(), V(2, 11)));
  AddCommitted(V(2, 13), {Tier::kMemory});
  EXPECT_TRUE(IsDead(job(), V(2, 11)));
}

TEST_F(VersionsModule, ALaterRestoreOfASmallerStepAbandons) {
  AddCommitted(V(1, 10), {Tier::kDisk});
  AddCommitted(V(1, 20), {Tier::kDisk});
  EXPECT_EQ(NewestCommitted(job(), Tier::kDisk), V(1, 20));
  job().lineage().decision = Decision::kVersion;
  job().lineage().restored = V(1, 10);
  EXPECT_FALSE(IsAbandoned(job(), V(1, 10)));
  EXPECT_TRUE(IsAbandoned(job(), V(1, 20)));
  EXPECT_FALSE(IsAbandoned(job(), V(2, 20)));
  EXPECT_EQ(NewestCommitted(job(), Tier::kDisk), V(1, 10));
  EXPECT_EQ(NewestRestorable(job()), V(1, 10));
}

TEST_F(VersionsModule, AnotherLifeDidNotKnowTheVersion) {
  job().lineages[Incarnation{1}].life = LifeId{7};
  job().lineages[Incarnation{2}].life = LifeId{8};
  LineageRecord& third = job().lineages[Incarnation{3}];
  third.life = LifeId{8};
  third.decision = Decision::kVersion;
  third.restored = V(2, 5);
  EXPECT_FALSE(IsAbandoned(job(), V(1, 20)));
  job().lineages[Incarnation{1}].life = LifeId{8};
  EXPECT_TRUE(IsAbandoned(job(), V(1, 20)));
}

TEST_F(VersionsModule, RestorableNeedsACommitAndEveryShard) {
  VersionState& version = AddCommitted(V(2, 10), {Tier::kMemory});
  EXPECT_TRUE(IsRestorable(job(), version));
  version.phase = Phase::kRemoving;
  EXPECT_FALSE(IsRestorable(job(), version));
  version.phase = Phase::kCommitted;
  version.RemoveReplica(Rank{1}, {1, Tier::kMemory});
  EXPECT_FALSE(IsRestorable(job(), version));
}

TEST_F(VersionsModule, TheFirstUnprotectedCommitReplacesThePeerFloor) {
  job().incarnation = Incarnation{1};
  MakeGroup(1);
  job().incarnation = Incarnation{2};
  AddCommitted(V(1, 10), {Tier::kMemory, Tier::kPeer});
  EXPECT_EQ(PeerFloor(job()), V(1, 10));
  AddCommitted(V(2, 11), {Tier::kMemory});
  EXPECT_EQ(PeerFloor(job()), std::nullopt);
}

TEST_F(VersionsModule, AnAbortRemovesWhatIsOnDiskAndFreesTheTarget) {
  job().targets[Tier::kDisk].Restart(Step{10});
  job().newest_seen = Step{10};
  VersionState& version = Add(V(2, 10));
  Hold(version, Rank{0}, {0, Tier::kDisk});
  AbortVersion(context, job(), version, /*store=*/true);
  EXPECT_EQ(version.phase, Phase::kAborted);
  EXPECT_EQ(job().removals.count({0, V(2, 10), Tier::kDisk}), 1U);
  ASSERT_EQ(Added<PutVersion>().size(), 1U);
  EXPECT_EQ(Added<PutVersion>()[0].record.phase, Phase::kAborted);
  EXPECT_TRUE(job().targets[Tier::kDisk].Advance(Step{11}));
  AbortVersion(context, job(), version, /*store=*/true);
  EXPECT_EQ(Added<PutVersion>().size(), 1U);
}

TEST_F(VersionsModule, DamageIsFoundOnce) {
  VersionState& version = AddCommitted(V(2, 10), {Tier::kDisk});
  RecordDamage(context, job(), version, Rank{1}, {1, Tier::kDisk}, "chunk 3 is bad");
  RecordDamage(context, job(), version, Rank{1}, {1, Tier::kDisk}, "chunk 4 is bad");
  ASSERT_EQ(Added<Finding>().size(), 1U);
  EXPECT_EQ(Added<Finding>()[0].node, "b");
  EXPECT_THAT(Added<Finding>()[0].what.message(), ::testing::HasSubstr("chunk 3 is bad"));
  EXPECT_TRUE(job().repair_due);
}

}  // namespace
}  // namespace holdfast::coord
