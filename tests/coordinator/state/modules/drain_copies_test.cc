#include "coordinator/state/drain_copies.h"

#include <map>
#include <vector>

#include "coordinator/state/flush.h"
#include "coordinator/state/prepares.h"
#include "coordinator/state/repair.h"
#include "coordinator/state/retention.h"
#include "tests/coordinator/state/modules/drain_module.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

/// Two nodes with one rank each and no parity groups, and a third node "z".
class DrainCopies : public DrainModule {
 protected:
  void SetUp() override {
    MakeJob(2);
    other_ = MakeNode("z");
    AddCommitted(V(2, 10), {Tier::kDisk});
    job().phase = JobPhase::kEnded;
  }
  std::map<RepairKey, Repair> Planned() {
    std::map<RepairKey, Repair> missing;
    PlanDrainCopies(context, job(), missing);
    return missing;
  }
  std::vector<VersionId> PlannedVersions() {
    std::vector<VersionId> versions;
    for (const auto& [key, repair] : Planned()) versions.push_back(key.version);
    return versions;
  }

  NodeIndex other_ = 0;
  const RepairKey key_{V(2, 10), Rank{0}, Tier::kDisk};
};

TEST_F(DrainCopies, AnotherNodeIsDirectedToCopyTheShardFromTheDrainedNode) {
  EXPECT_TRUE(Planned().empty()) << "no node is drained";
  Drain("a");
  cluster.nodes[other_].health.disk_free_percent = 51;
  AdvanceRepairs(context, job());
  const auto sent = SentTo<PrepareShard>(other_);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].identity.key(), (ShardKey{"gpt", V(2, 10), Rank{0}}));
  EXPECT_EQ(sent[0].tier, Tier::kDisk);
  EXPECT_EQ(sent[0].into, Tier::kDisk);
  EXPECT_EQ(sent[0].source_node, "a");
  EXPECT_EQ(sent[0].source_peer_address, "unix:/a.peer");
  EXPECT_EQ(sent[0].digest, 1000U);
  EXPECT_EQ(SentTo<JobState>(other_).size(), 1U) << "peers refuse a node without the job state";
  EXPECT_EQ(Judge("a").to_do, "wait: another node copies its shards");
  EXPECT_EQ(Judge("a").writing, 1U);
  // More free space elsewhere does not move a copy in progress, and it is not sent again.
  cluster.nodes[1].health.disk_free_percent = 90;
  AdvanceRepairs(context, job());
  EXPECT_EQ(job().repairs.at(key_).target, other_);
  EXPECT_EQ(SentTo<PrepareShard>(other_).size() + SentTo<PrepareShard>(1).size(), 1U);
  Hold(version(), Rank{0}, {other_, Tier::kDisk});
  EXPECT_TRUE(Planned().empty());
  EXPECT_EQ(Judge("a").state, DrainState::kSafe);
}

TEST_F(DrainCopies, NodesThatLeaveOrHaveNoRoomTakeNoCopy) {
  Drain("a");
  cluster.nodes[1].health.disk_free_percent = 9;
  EXPECT_EQ(Planned().at(key_).target, other_);
  cluster.nodes[other_].health.departing = true;
  EXPECT_TRUE(Planned().empty());
  cluster.nodes[other_].health.departing = false;
  Drain("z");
  EXPECT_TRUE(Planned().empty());
  EXPECT_THAT(Judge("a").to_do, HasSubstr("attach another node"));
}

TEST_F(DrainCopies, AfterAFailureAnotherNodeTriesAndTheReasonIsNamed) {
  Drain("a");
  AdvanceRepairs(context, job());
  const NodeIndex first = job().repairs.at(key_).target;
  const uint64_t request = job().repairs.at(key_).request.value();
  ASSERT_NE(request, 0U);
  const auto pending = TakePrepare(context, first, request);
  ASSERT_TRUE(pending.has_value());
  OnRepaired(context, job(), *pending, {request, OutOfSpaceError("needs 4096 bytes on disk")});
  EXPECT_THAT(Judge("a").why, HasSubstr("failed: needs 4096 bytes on disk"));
  AdvanceRepairs(context, job());
  const Repair& next = job().repairs.at(key_);
  EXPECT_NE(next.target, first);
  EXPECT_EQ(next.request, std::nullopt) << "not before the pause has passed";
  Pass(std::chrono::seconds(2));
  AdvanceRepairs(context, job());
  EXPECT_NE(job().repairs.at(key_).request, std::nullopt);
}

TEST_F(DrainCopies, ACopyThatHasBegunIsCompletedBeforeANewerVersionAndIsRetained) {
  options.keep_last = 1;
  Drain("a");
  AdvanceRepairs(context, job());
  AddCommitted(V(2, 11), {Tier::kDisk});
  AddCommitted(V(2, 12), {Tier::kDisk});
  EXPECT_EQ(PlannedVersions(), std::vector<VersionId>{V(2, 10)});
  job().retention_due = true;
  ApplyRetention(context, job());
  EXPECT_TRUE(job().versions.at(V(2, 10)).committed()) << "the copy would fail";
  EXPECT_FALSE(job().versions.at(V(2, 11)).committed());
  Hold(version(), Rank{0}, {other_, Tier::kDisk});
  AdvanceRepairs(context, job());
  EXPECT_EQ(PlannedVersions(), std::vector<VersionId>{V(2, 12)});
  job().repairs.begin()->second.attempts = 1;
  AddCommitted(V(2, 13), {Tier::kDisk});
  EXPECT_EQ(PlannedVersions(), std::vector<VersionId>{V(2, 13)}) << "its copy has failed";
}

TEST_F(DrainCopies, PinnedVersionsAreCopiedAndThoseAtASharedTierAreNot) {
  Drain("a");
  AddCommitted(V(2, 11), {Tier::kDisk}).pinned = true;
  AddCommitted(V(2, 12), {Tier::kDisk});
  EXPECT_EQ(PlannedVersions(), (std::vector<VersionId>{V(2, 11), V(2, 12)}));
  VersionState& newest = job().versions.at(V(2, 12));
  newest.tiers |= TierBit(Tier::kRemote);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Hold(newest, Rank{rank}, ReplicaAt(kNoNode, Tier::kRemote));
  }
  job().repairs.clear();
  EXPECT_EQ(Planned().count({V(2, 12), Rank{0}, Tier::kDisk}), 0U);
}

TEST_F(DrainCopies, VersionsWithParityGroupsAreLeftToTheGroups) {
  MakeJob(3);
  MakeGroup(1);
  AddCommitted(V(2, 10), {Tier::kDisk});
  Drain("a");
  EXPECT_TRUE(Planned().empty());
}

TEST_F(DrainCopies, TheNewestVersionOfARunningJobIsWrittenToDiskEveryTenSeconds) {
  job().phase = JobPhase::kRunning;
  AddCommitted(V(2, 11), {Tier::kMemory});
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, std::nullopt) << "no node is drained";
  Drain("a");
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, V(2, 11));
  AddCommitted(V(2, 12), {Tier::kMemory});
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, V(2, 11)) << "it is being written";
  VersionState& written = job().versions.at(V(2, 11));
  written.tiers |= TierBit(Tier::kDisk);
  job().copies[Tier::kDisk].committed_at = context.at.now;
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, std::nullopt) << "the drain may last for days";
  Pass(std::chrono::seconds(10));
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, V(2, 12));
  Drain("a", false);
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, std::nullopt);
}

TEST_F(DrainCopies, ARunWithoutParityGroupsMayLeaveWhileTheDrainedNodeServesItsVersion) {
  job().phase = JobPhase::kRunning;
  Drain("a", true, true);
  EXPECT_EQ(Judge("a").state, DrainState::kNotSafe);
  AllowRunsToLeave(context);
  EXPECT_EQ(Added<RunsMayLeave>().size(), 1U);
  Lose(0);
  AllowRunsToLeave(context);
  EXPECT_EQ(Added<RunsMayLeave>().size(), 1U) << "nothing can be restored";
}

TEST_F(DrainCopies, TheNodeWithTheShardInMemoryComesFirstThenTheRanksNodeThenFreeSpace) {
  Drain("a");
  cluster.nodes[1].health.disk_free_percent = 60;
  cluster.nodes[other_].health.disk_free_percent = 50;
  EXPECT_EQ(Planned().at(key_).target, 1U) << "more free space";
  job().rank_nodes[0] = other_;
  EXPECT_EQ(Planned().at(key_).target, other_) << "the rank runs there";
  Hold(version(), Rank{0}, {1, Tier::kMemory});
  EXPECT_EQ(Planned().at(key_).target, 1U) << "nothing is read over the network";
}

TEST_F(DrainCopies, AShardWithAReplicaOnANodeThatStaysIsNotCopied) {
  Drain("a");
  Hold(version(), Rank{0}, {other_, Tier::kMemory});
  EXPECT_EQ(Planned().count(key_), 1U) << "memory does not survive a power cut";
  Hold(version(), Rank{0}, {other_, Tier::kDisk});
  EXPECT_TRUE(Planned().empty());
  Drain("z");
  EXPECT_EQ(Planned().at(key_).target, 1U) << "both nodes with the shard are drained";
}

TEST_F(DrainCopies, TheSourceIsAReplicaOnDiskOrElseTheShardIsDecoded) {
  EXPECT_EQ(SourceOfCopy(version().ranks[0]), (Replica{0, Tier::kDisk}));
  const VersionState& in_memory = AddCommitted(V(2, 11), {Tier::kMemory});
  EXPECT_EQ(SourceOfCopy(in_memory.ranks[0]), kDecode);
}

}  // namespace
}  // namespace holdfast::coord
