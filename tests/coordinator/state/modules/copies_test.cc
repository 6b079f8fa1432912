#include "coordinator/state/copies.h"

#include "coordinator/state/load.h"
#include "coordinator/state/passes.h"
#include "coordinator/state/repair.h"
#include "coordinator/state/retention.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
constexpr Tier kRemote = Tier::kRemote;

class CopiesModule : public ModuleTest {
 protected:
  void SetUp() override {
    ModuleTest::SetUp();
    for (Node& node : cluster.nodes) node.shared_tiers = TierBit(kRemote);
  }
  std::map<RepairKey, Repair> Plan() {
    std::map<RepairKey, Repair> missing;
    PlanCopies(context, job(), missing);
    return missing;
  }
  VersionState& AddOnDisk(VersionId id) { return AddCommitted(id, {Tier::kMemory, Tier::kDisk}); }
  VersionState& AddRemote(VersionId id) {
    VersionState& version = AddOnDisk(id);
    version.tiers |= TierBit(kRemote);
    for (uint32_t rank = 0; rank < version.world; ++rank) {
      version.AddReplica(Rank{rank}, ReplicaAt(rank, kRemote));
    }
    return version;
  }
  std::optional<VersionId> Copying() { return job().copies[kRemote].version; }
  /// Marks the orders of the version that is being copied as sent or as failed.
  void SetOrders(std::optional<uint64_t> request) {
    job().repairs = Plan();
    for (auto& [key, repair] : job().repairs) repair.request = request;
  }
};

TEST_F(CopiesModule, TheNewestVersionOnDiskIsCopiedByTheNodesThatHaveIt) {
  AddOnDisk(V(2, 10));
  AddOnDisk(V(2, 20));
  AddCommitted(V(2, 30), {Tier::kMemory});
  const auto missing = Plan();
  ASSERT_EQ(missing.size(), 2U);
  EXPECT_EQ(Copying(), V(2, 20));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const auto found = missing.find({V(2, 20), Rank{rank}, kRemote});
    ASSERT_NE(found, missing.end());
    EXPECT_EQ(found->second.target, rank);
  }
}

TEST_F(CopiesModule, NothingIsCopiedWithoutANodeThatReachesTheTier) {
  AddOnDisk(V(2, 20));
  for (Node& node : cluster.nodes) node.shared_tiers = 0;
  EXPECT_TRUE(Plan().empty());
  EXPECT_FALSE(HasCopiesDue(context, job()));
  // A rank's node without the tier is not ordered to write there.
  cluster.nodes[0].shared_tiers = TierBit(kRemote);
  EXPECT_TRUE(HasCopiesDue(context, job()));
  EXPECT_EQ(Plan().size(), 1U);
}

TEST_F(CopiesModule, AVersionThatIsIncompleteOnDiskIsNotChosen) {
  AddOnDisk(V(2, 10));
  VersionState& newer = AddOnDisk(V(2, 20));
  newer.RemoveReplica(Rank{1}, {1, Tier::kDisk});
  Plan();
  EXPECT_EQ(Copying(), V(2, 10));
}

TEST_F(CopiesModule, TheIntervalsInStepsAndTimeAreKept) {
  options.copies[kRemote].every_steps = 100;
  options.copies[kRemote].interval = std::chrono::seconds(60);
  AddRemote(V(2, 100));
  job().copies[kRemote].committed_at = context.at.now;
  AddOnDisk(V(2, 199));
  EXPECT_TRUE(Plan().empty());
  AddOnDisk(V(2, 200));
  EXPECT_TRUE(Plan().empty()) << "the time has not passed";
  Pass(std::chrono::seconds(60));
  EXPECT_EQ(Plan().size(), 2U);
  EXPECT_EQ(Copying(), V(2, 200));
}

TEST_F(CopiesModule, AWaitAndTheEndOfTheJobOverrideTheIntervals) {
  options.copies[kRemote].every_steps = 1000;
  AddRemote(V(2, 100));
  AddOnDisk(V(2, 110));
  EXPECT_TRUE(Plan().empty());
  job().copies[kRemote].wanted = V(2, 105);
  EXPECT_EQ(Plan().size(), 2U);
  job().copies[kRemote] = {};
  EXPECT_TRUE(Plan().empty());
  job().phase = JobPhase::kFinished;
  EXPECT_EQ(Plan().size(), 2U);
}

TEST_F(CopiesModule, ACopyInProgressStaysAndOneThatFailedGivesWay) {
  AddOnDisk(V(2, 10));
  SetOrders(7);
  ASSERT_EQ(Copying(), V(2, 10));
  AddOnDisk(V(2, 20));
  EXPECT_EQ(Plan().begin()->first.version, V(2, 10)) << "its file system may only be slow";
  job().versions.at(V(2, 10)).AddReplica(Rank{0}, ReplicaAt(0, kRemote));
  job().repairs.begin()->second.request.reset();
  job().repairs.rbegin()->second.request.reset();
  job().repairs.begin()->second.not_before = context.at.now + std::chrono::seconds(4);
  EXPECT_EQ(Plan().begin()->first.version, V(2, 10)) << "newer versions do not shorten the pause";
  Pass(std::chrono::seconds(4));
  SetOrders(std::nullopt);
  EXPECT_EQ(Copying(), V(2, 20));
  EXPECT_EQ(job().removals.count({kNoNode, V(2, 10), kRemote}), 1U)
      << "half of a version must not stay";
  EXPECT_EQ(job().versions.at(V(2, 10)).held_at(kRemote), 0U);
}

TEST_F(CopiesModule, AShardThatTheTierLostIsCopiedAgain) {
  VersionState& version = AddRemote(V(2, 10));
  EXPECT_TRUE(Plan().empty());
  version.RemoveReplica(Rank{1}, ReplicaAt(1, kRemote));
  const auto missing = Plan();
  ASSERT_EQ(missing.size(), 1U);
  EXPECT_EQ(missing.begin()->first.rank, Rank{1});
}

TEST_F(CopiesModule, TheLossOfNodesRemovesNoReplicaOfASharedTier) {
  VersionState& version = AddRemote(V(2, 10));
  Lose(0);
  Lose(1);
  EXPECT_EQ(version.held_at(Tier::kDisk), 0U);
  EXPECT_EQ(version.held_at(kRemote), 2U);
  EXPECT_TRUE(IsRestorable(job(), version));
}

TEST_F(CopiesModule, ACopyThatHangsDelaysNoRepairOnItsNode) {
  MakeGroup(1);
  job().lineage().decision = Decision::kFresh;  // no restore is pending
  AddOnDisk(V(2, 10));
  VersionState& version = job().versions.at(V(2, 10));
  AddParity(version, Tier::kDisk);
  AdvanceRepairs(context, job());
  ASSERT_EQ(SentTo<PrepareShard>(0).size(), 1U);
  EXPECT_EQ(SentTo<PrepareShard>(0)[0].into, kRemote);
  EXPECT_EQ(SentTo<PrepareShard>(0)[0].tier, Tier::kDisk);
  effects.clear();
  version.RemoveReplica(Rank{0}, {0, Tier::kDisk});
  AdvanceRepairs(context, job());
  Pass(std::chrono::seconds(5));
  AdvanceRepairs(context, job());
  ASSERT_EQ(SentTo<PrepareShard>(0).size(), 1U) << "the shard on disk is repaired meanwhile";
  EXPECT_EQ(SentTo<PrepareShard>(0)[0].into, Tier::kDisk);
}

TEST_F(CopiesModule, EachTierKeepsItsOwnNumberOfVersions) {
  options.keep_last = 1;
  options.copies[kRemote].retention = {2, 0};
  for (uint64_t step : {10, 20, 30, 40}) AddRemote(V(2, step));
  job().retention_due = true;
  ApplyRetention(context, job());
  EXPECT_EQ(job().versions.at(V(2, 10)).phase, Phase::kRemoving);
  EXPECT_EQ(job().versions.at(V(2, 20)).phase, Phase::kRemoving);
  const VersionState& third = job().versions.at(V(2, 30));
  EXPECT_TRUE(third.committed_at(kRemote));
  EXPECT_FALSE(third.committed_at(Tier::kDisk));
  EXPECT_EQ(third.held_at(Tier::kDisk), 0U);
  EXPECT_TRUE(IsRestorable(job(), third));
  EXPECT_TRUE(job().versions.at(V(2, 40)).committed_at(Tier::kDisk));
  EXPECT_EQ(job().removals.count({0, V(2, 30), Tier::kDisk}), 1U);
  EXPECT_EQ(job().removals.count({kNoNode, V(2, 30), kRemote}), 0U);
  EXPECT_EQ(job().removals.count({kNoNode, V(2, 20), kRemote}), 1U);
}

TEST_F(CopiesModule, OldVersionsStayUntilNewerOnesAreCommittedAtTheTier) {
  options.keep_last = 1;
  options.copies[kRemote].retention = {1, 0};
  AddRemote(V(2, 10));
  for (uint64_t step : {20, 30, 40}) AddOnDisk(V(2, step));
  job().retention_due = true;
  ApplyRetention(context, job());
  const VersionState& oldest = job().versions.at(V(2, 10));
  EXPECT_TRUE(oldest.committed_at(kRemote)) << "it is the only one at the tier";
  EXPECT_TRUE(job().versions.at(V(2, 40)).committed());
}

TEST_F(CopiesModule, TheVersionThatIsBeingCopiedStaysOnDisk) {
  options.keep_last = 1;
  AddOnDisk(V(2, 10));
  SetOrders(7);
  for (uint64_t step : {20, 30, 40}) AddOnDisk(V(2, step));
  job().retention_due = true;
  ApplyRetention(context, job());
  EXPECT_TRUE(job().versions.at(V(2, 10)).committed_at(Tier::kDisk));
  EXPECT_EQ(job().versions.at(V(2, 20)).phase, Phase::kRemoving);
}

TEST_F(CopiesModule, ARemovalGoesToANodeThatReachesTheTierAndWaitsForOne) {
  cluster.nodes[0].shared_tiers = 0;
  AddRemote(V(2, 10)).phase = Phase::kRemoving;
  job().changed = true;
  ApplyChanges(context);
  EXPECT_TRUE(SentTo<RemoveVersion>(0).empty());
  ASSERT_EQ(SentTo<RemoveVersion>(1).size(), 1U);
  EXPECT_EQ(SentTo<RemoveVersion>(1)[0].tier, kRemote);
  EXPECT_EQ(job().versions.at(V(2, 10)).held_at(kRemote), 0U);
}

TEST_F(CopiesModule, ARemovalIsNotForgottenWhileNoNodeReachesTheTier) {
  AddRemote(V(2, 10)).phase = Phase::kRemoving;
  for (Node& node : cluster.nodes) node.shared_tiers = 0;
  job().changed = true;
  ApplyChanges(context);
  EXPECT_EQ(job().versions.at(V(2, 10)).held_at(kRemote), 2U);
  cluster.nodes[1].shared_tiers = TierBit(kRemote);
  job().changed = true;
  ApplyChanges(context);
  EXPECT_EQ(SentTo<RemoveVersion>(1).size(), 1U);
}

TEST_F(CopiesModule, RecordsNameTheReplicasOfASharedTier) {
  VersionState& version = AddRemote(V(2, 10));
  StoreVersion(context, job(), version, 0);
  Records records;
  records.jobs.push_back(JobRecordOf(context, job()));
  for (const auto& [incarnation, lineage] : job().lineages) records.lineages.push_back(lineage);
  records.versions.push_back(Added<PutVersion>().back().record);
  cluster = {};
  ASSERT_TRUE(LoadRecords(context, records).ok());
  const VersionState& loaded = job().versions.at(V(2, 10));
  EXPECT_EQ(loaded.held_at(kRemote), 2U);
  EXPECT_EQ(loaded.held_at(Tier::kDisk), 0U);
  EXPECT_TRUE(IsRestorable(job(), loaded));
}

}  // namespace
}  // namespace holdfast::coord
