#include "coordinator/state/drain.h"
#include "coordinator/state/drain_copies.h"
#include "coordinator/state/flush.h"
#include "coordinator/state/prepares.h"
#include "coordinator/state/rehome.h"
#include "coordinator/state/repair.h"
#include "coordinator/state/retention.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

/// Three nodes in one parity group, whose job has ended with version 2-10 on disk.
class DrainModule : public ModuleTest {
 protected:
  void SetUp() override {
    MakeJob(3);
    MakeGroup(1);
    AddCommitted(V(2, 10), {Tier::kDisk});
    AddParity(version(), Tier::kDisk);
    job().phase = JobPhase::kEnded;
  }
  VersionState& version() { return job().versions.at(V(2, 10)); }
  ErrorCode Drain(const std::string& node, bool set = true, bool move_runs = false) {
    OnDrainSet(context, {7, node, set, "new fan", move_runs});
    return Added<Reply>().back().outcome.code();
  }
  DrainedJob Judge(const std::string& node) {
    const auto status = DrainOf(context, node);
    EXPECT_TRUE(status.has_value());
    return status ? status->jobs.at(0) : DrainedJob();
  }
};

TEST_F(DrainModule, ADrainIsStoredKeepsItsBeginningAndEnds) {
  EXPECT_EQ(Drain("z"), ErrorCode::kNotFound);
  EXPECT_EQ(Drain("b"), ErrorCode::kOk);
  context.at.wall_nanos += 50;
  EXPECT_EQ(Drain("b", true, true), ErrorCode::kOk);
  ASSERT_EQ(Added<PutDrain>().size(), 2U);
  EXPECT_EQ(Added<PutDrain>().back().record, (DrainRecord{"b", "new fan", 1000, true}));
  EXPECT_TRUE(job().repair_due);
  EXPECT_EQ(Drain("b", false), ErrorCode::kOk);
  EXPECT_EQ(Drain("b", false), ErrorCode::kOk);  // a second time has no effect
  EXPECT_EQ(Added<EraseDrain>().size(), 1U);
  EXPECT_FALSE(cluster.nodes[1].drain.has_value());
}

TEST_F(DrainModule, AnotherNodeTakesThePlaceAtOnceAndTheJobIsSafeWhenItHasTheShards) {
  const NodeIndex spare = MakeNode("z");
  Drain("b");
  EXPECT_EQ(Judge("b").state, DrainState::kLessProtected);
  RehomeLost(context, job());
  const uint32_t number = job().groups_of(Incarnation{2})->by_rank[1];
  ASSERT_EQ(job().groups_of(Incarnation{2})->members[number].node, spare);
  RehomeLost(context, job());  // the drained node is attached, and does not get its place back
  EXPECT_EQ(job().groups_of(Incarnation{2})->members[number].node, spare);
  EXPECT_EQ(Judge("b").state, DrainState::kLessProtected);
  Hold(version(), Rank{1}, {spare, Tier::kDisk});
  EXPECT_EQ(Judge("b").state, DrainState::kLessProtected) << "its parity is still missing";
  Hold(version(), ParityRank(number), {spare, Tier::kDisk});
  const DrainedJob judged = Judge("b");
  EXPECT_EQ(judged.state, DrainState::kSafe) << judged.why;
  EXPECT_EQ(judged.safe, V(2, 10));
  EXPECT_EQ(judged.why + judged.to_do, "");
}

TEST_F(DrainModule, WithoutAFreeNodeTheJobIsLessProtectedAndTheTextHasARemedy) {
  Drain("b");
  RehomeLost(context, job());
  const DrainedJob judged = Judge("b");
  EXPECT_EQ(judged.state, DrainState::kLessProtected);
  EXPECT_THAT(judged.why, HasSubstr("survives the loss of 0 further nodes"));
  EXPECT_THAT(judged.to_do, HasSubstr("attach a node"));
  // A drained node and a node with a full disk take no place.
  cluster.nodes[MakeNode("y")].drain = DrainRecord{"y", "", 1, false};
  cluster.nodes[MakeNode("z")].health.disk_free_percent = 9;
  RehomeLost(context, job());
  EXPECT_THAT(Judge("b").to_do, HasSubstr("attach a node"));
}

TEST_F(DrainModule, AVersionThatNeedsTheNodesIsNotSafe) {
  Drain("b");
  Drain("c");
  const auto status = DrainOf(context, "b");
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->others, std::vector<std::string>{"c"});
  const DrainedJob judged = Judge("b");
  EXPECT_EQ(judged.state, DrainState::kNotSafe);
  EXPECT_EQ(judged.safe, VersionId{});
  EXPECT_THAT(judged.why, HasSubstr("version 2-10 needs the node"));
  EXPECT_NE(judged.to_do, "");
}

TEST_F(DrainModule, ASharedTierIsEnough) {
  Drain("b");
  Drain("c");
  version().tiers |= TierBit(Tier::kRemote);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    Hold(version(), Rank{rank}, ReplicaAt(kNoNode, Tier::kRemote));
  }
  EXPECT_EQ(Judge("b").state, DrainState::kSafe);
}

TEST_F(DrainModule, AJobWithoutParityGroupsIsSafeAtTierRemoteOrOnOtherNodes) {
  MakeJob(1);
  AddCommitted(V(2, 10), {Tier::kDisk});
  job().phase = JobPhase::kEnded;
  Drain("a");
  EXPECT_EQ(Judge("a").state, DrainState::kNotSafe);
  EXPECT_THAT(Judge("a").why, HasSubstr("may stop, but not lose its disk"));
  EXPECT_THAT(Judge("a").to_do, HasSubstr("configure tier remote, or save a copy with `holdfast "
                                          "restore gpt --to DIR`"));
  const NodeIndex other = MakeNode("z");
  EXPECT_EQ(Judge("a").to_do, "wait: another node copies its shards");
  job().phase = JobPhase::kRunning;
  EXPECT_THAT(Judge("a").to_do, HasSubstr("run the job on other nodes"));
  Drain("a", false);
  EXPECT_THAT(Judge("a").to_do, HasSubstr("drain the node"));
  // The next save of the job is on another node.
  Hold(version(), Rank{0}, {other, Tier::kDisk});
  EXPECT_EQ(Judge("a").state, DrainState::kSafe);
}

TEST_F(DrainModule, AJobWithoutParityGroupsWaitsForItsCopyAtTierRemote) {
  MakeJob(1);
  AddCommitted(V(2, 10), {Tier::kDisk});
  job().phase = JobPhase::kEnded;
  cluster.nodes[0].shared_tiers = TierBit(Tier::kRemote);
  Drain("a");
  EXPECT_EQ(Judge("a").to_do, "wait: its shards are copied to tier remote");
  Repair& repair = job().repairs[{V(2, 10), Rank{0}, Tier::kRemote}];
  repair.target = 0;
  repair.failure = "No space left";
  EXPECT_THAT(Judge("a").why, HasSubstr("the copy of rank-0 to remote on node a failed: No space"));
  version().tiers |= TierBit(Tier::kRemote);
  Hold(version(), Rank{0}, ReplicaAt(kNoNode, Tier::kRemote));
  EXPECT_EQ(Judge("a").state, DrainState::kSafe);
}

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
  const uint64_t request = job().repairs.at(key_).request;
  ASSERT_NE(request, 0U);
  const auto pending = TakePrepare(context, first, request);
  ASSERT_TRUE(pending.has_value());
  OnRepaired(context, job(), *pending, {request, OutOfSpaceError("needs 4096 bytes on disk")});
  EXPECT_THAT(Judge("a").why, HasSubstr("failed: needs 4096 bytes on disk"));
  AdvanceRepairs(context, job());
  const Repair& next = job().repairs.at(key_);
  EXPECT_NE(next.target, first);
  EXPECT_EQ(next.request, 0U) << "not before the pause has passed";
  Pass(std::chrono::seconds(2));
  AdvanceRepairs(context, job());
  EXPECT_NE(job().repairs.at(key_).request, 0U);
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
  EXPECT_EQ(job().flush, VersionId{}) << "no node is drained";
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
  EXPECT_EQ(job().flush, VersionId{}) << "the drain may last for days";
  Pass(std::chrono::seconds(10));
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, V(2, 12));
  Drain("a", false);
  AdvanceDeparture(context, job());
  EXPECT_EQ(job().flush, VersionId{});
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

TEST_F(DrainModule, APinnedVersionMustSurviveToo) {
  VersionState& pinned = AddCommitted(V(1, 5), {Tier::kDisk});  // without parity
  Drain("b");
  EXPECT_EQ(Judge("b").state, DrainState::kLessProtected);
  pinned.pinned = true;
  EXPECT_EQ(Judge("b").state, DrainState::kNotSafe);
  EXPECT_THAT(Judge("b").why, HasSubstr("1-5"));
}

TEST_F(DrainModule, ANodeKeepsThePlacesOfItsRunningRanks) {
  MakeNode("z");
  job().phase = JobPhase::kRunning;
  Drain("b");
  RehomeLost(context, job());
  const uint32_t number = job().groups_of(Incarnation{2})->by_rank[1];
  EXPECT_EQ(job().groups_of(Incarnation{2})->members[number].node, 1U);
  const DrainedJob judged = Judge("b");
  EXPECT_EQ(judged.state, DrainState::kLessProtected);
  EXPECT_TRUE(judged.runs_here);
  EXPECT_THAT(judged.to_do, HasSubstr("--move-runs"));
}

TEST_F(DrainModule, WhileAJobSavesOneVersionMayBeWithoutParity) {
  job().phase = JobPhase::kRunning;
  Drain("b");
  AddCommitted(V(2, 11), {Tier::kMemory});
  EXPECT_EQ(Judge("b").state, DrainState::kLessProtected);
  EXPECT_EQ(Judge("b").safe, V(2, 10));
  AddCommitted(V(2, 12), {Tier::kMemory});
  EXPECT_EQ(Judge("b").state, DrainState::kNotSafe) << "two steps would be lost";
  job().versions.erase(V(2, 12));
  Pass(options.flush_after * 10);
  EXPECT_EQ(Judge("b").state, DrainState::kNotSafe) << "the job no longer saves";
}

TEST_F(DrainModule, AJobWithoutAnyVersionIsSafeUnlessItRunsThere) {
  job().versions.clear();
  EXPECT_EQ(Judge("b").state, DrainState::kSafe);
  job().phase = JobPhase::kRunning;
  EXPECT_EQ(Judge("b").state, DrainState::kNotSafe);
}

TEST_F(DrainModule, RunsMayLeaveOnlyWhenNothingWouldBeLost) {
  job().phase = JobPhase::kRunning;
  Drain("b");
  AllowRunsToLeave(context);
  EXPECT_TRUE(Added<RunsMayLeave>().empty()) << "the operator did not ask for it";
  Drain("b", true, true);
  AllowRunsToLeave(context);
  ASSERT_EQ(Added<RunsMayLeave>().size(), 1U);
  EXPECT_EQ(Added<RunsMayLeave>()[0].node, "b");
  AddCommitted(V(2, 11), {Tier::kMemory});
  AddCommitted(V(2, 12), {Tier::kMemory});
  AllowRunsToLeave(context);
  EXPECT_EQ(Added<RunsMayLeave>().size(), 1U);
}

}  // namespace
}  // namespace holdfast::coord
