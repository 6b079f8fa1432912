#include "coordinator/view/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::view {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 1'700'000'000 * kSecond;
constexpr int64_t kStale = 600 * kSecond;

void Set(coordinator::Version* version, uint64_t incarnation, uint64_t step) {
  version->set_incarnation(incarnation);
  version->set_step(step);
}

/// Two nodes up; one running job whose newest versions are 2 s old.
ClusterSnapshot HealthySnapshot() {
  ClusterSnapshot snapshot;
  snapshot.now_wall_nanos = kNow;
  for (const char* name : {"n0", "n1"}) {
    auto* node = snapshot.status.add_nodes();
    node->set_node(name);
    node->set_alive(true);
    node->set_disk_free_percent(60);
    node->set_seen_wall_nanos(kNow - kSecond);
  }
  auto* job = snapshot.status.add_jobs();
  job->set_job("lm");
  job->set_incarnation(1);
  job->set_world(4);
  job->set_ranks_joined(4);
  Set(job->mutable_memory_committed(), 1, 20);
  Set(job->mutable_disk_committed(), 1, 18);
  Set(job->mutable_restorable(), 1, 20);
  job->set_committed_total(20);
  job->set_committed_wall_nanos(kNow - 2 * kSecond);
  auto& versions = snapshot.versions["lm"];
  for (uint64_t step : {20, 18}) {
    auto* version = versions.add_versions();
    Set(version->mutable_version(), 1, step);
    version->set_state("committed");
    version->set_wall_nanos(kNow - static_cast<int64_t>(22 - step) * kSecond);
  }
  auto* pending = versions.add_versions();
  Set(pending->mutable_version(), 1, 21);
  pending->set_state("pending");
  pending->set_bytes(512);
  return snapshot;
}

std::vector<std::string> CodesOf(const ClusterSnapshot& snapshot) {
  std::vector<std::string> codes;
  for (const Finding& finding : Examine(snapshot, kStale)) codes.push_back(finding.code);
  return codes;
}

TEST(HealthTest, AHealthyClusterHasNoFindings) {
  ClusterSnapshot snapshot = HealthySnapshot();
  EXPECT_THAT(CodesOf(snapshot), IsEmpty());
  EXPECT_EQ(NameOf(WorstLevel(Examine(snapshot, kStale))), "HOLDFAST_OK");
  JobHealth job = HealthOf(snapshot, snapshot.status.jobs(0));
  EXPECT_EQ(job.phase, "joined");
  EXPECT_EQ(job.pending_bytes, 512U);
  EXPECT_EQ(job.committed_wall_nanos[Tier::kMemory], kNow - 2 * kSecond);
  EXPECT_EQ(job.committed_wall_nanos[Tier::kDisk], kNow - 4 * kSecond);
}

TEST(HealthTest, NodeDownIsAWarningUntilAllNodesAreDown) {
  ClusterSnapshot snapshot = HealthySnapshot();
  snapshot.status.mutable_nodes(0)->set_alive(false);
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("NODE_DOWN"));
  EXPECT_EQ(NameOf(WorstLevel(Examine(snapshot, kStale))), "HOLDFAST_WARN");
  snapshot.status.mutable_nodes(1)->set_alive(false);
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("NODE_DOWN", "NODE_DOWN"));
  EXPECT_EQ(NameOf(WorstLevel(Examine(snapshot, kStale))), "HOLDFAST_ERR");
}

TEST(HealthTest, NodesThatMayStillAttachToANewCoordinatorAreNotDown) {
  ClusterSnapshot snapshot = HealthySnapshot();
  snapshot.status.set_attaching(true);
  EXPECT_THAT(CodesOf(snapshot), IsEmpty());
  auto* job = snapshot.status.mutable_jobs(0);
  job->clear_restorable();
  for (auto& node : *snapshot.status.mutable_nodes()) {
    node.set_alive(false);
    node.set_seen_wall_nanos(0);
  }
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("ATTACHING"));
  const Finding finding = Examine(snapshot, kStale).front();
  EXPECT_EQ(finding.level, HealthLevel::kWarn);
  EXPECT_EQ(finding.message, "it has just started, and 2 of 2 nodes have not attached yet");
  // A node that has attached and is lost is down.
  snapshot.status.mutable_nodes(1)->set_seen_wall_nanos(kNow - kSecond);
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("ATTACHING", "NODE_DOWN"));
  snapshot.status.set_attaching(false);
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("NODE_DOWN", "NODE_DOWN", "NOT_RESTORABLE"));
}

TEST(HealthTest, ARankThatStoppedIsAnError) {
  ClusterSnapshot snapshot = HealthySnapshot();
  snapshot.status.mutable_nodes(0)->add_warnings("invariant violated: rank-0 of lm stopped, …");
  const std::vector<Finding> findings = Examine(snapshot, kStale);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, "INVARIANT_VIOLATED");
  EXPECT_EQ(findings[0].level, HealthLevel::kError);
}

TEST(HealthTest, OfACoordinatorThatStoppedNothingElseIsCertain) {
  ClusterSnapshot snapshot = HealthySnapshot();
  snapshot.status.mutable_nodes(0)->set_alive(false);
  snapshot.status.set_stopped_why("a == b does not hold at coordinator/state/commit.cc:7");
  const std::vector<Finding> findings = Examine(snapshot, kStale);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, "INVARIANT_VIOLATED");
  EXPECT_EQ(findings[0].subject, "coordinator");
  EXPECT_NE(findings[0].message.find("commit.cc:7"), std::string::npos);
}

TEST(HealthTest, DiskFindings) {
  ClusterSnapshot snapshot = HealthySnapshot();
  snapshot.status.mutable_nodes(0)->set_disk_free_percent(7);
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("DISK_LOW"));
  snapshot.status.mutable_nodes(0)->add_warnings("disk full: no room for lm/1-21/rank-0");
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("DISK_FULL"));
  snapshot.status.mutable_nodes(1)->add_warnings("disk failed: fsync: Input/output error");
  snapshot.status.mutable_nodes(1)->add_warnings("no memory for parity");
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("DISK_FULL", "DISK_FAILED", "NODE_WARNING"));
  snapshot.status.mutable_nodes(1)->clear_warnings();
  snapshot.status.mutable_nodes(1)->add_warnings("io_uring is refused (EPERM), so …");
  snapshot.status.mutable_nodes(1)->add_warnings("the keeper is lost, so …");
  snapshot.status.mutable_nodes(1)->add_warnings("the keeper (process 7) ends with this …");
  snapshot.status.mutable_nodes(1)->add_warnings("the clock is 3.0 s behind …");
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("DISK_FULL", "IO_URING_REFUSED", "KEEPER_LOST",
                                             "KEEPER_SHARED", "CLOCK_SKEWED"));
  snapshot.status.mutable_nodes(1)->clear_warnings();
  snapshot.status.mutable_nodes(1)->add_warnings("quarantined files: 2 in quarantine/");
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("DISK_FULL", "QUARANTINED_FILES"));
}

TEST(HealthTest, NotRestorableIsAnErrorAndComesFirst) {
  ClusterSnapshot snapshot = HealthySnapshot();
  snapshot.status.mutable_nodes(0)->set_disk_free_percent(7);
  snapshot.status.mutable_jobs(0)->clear_restorable();
  snapshot.status.mutable_jobs(0)->set_not_restorable_why("ranks 1, 2 are on no live node");
  auto findings = Examine(snapshot, kStale);
  ASSERT_THAT(CodesOf(snapshot), ElementsAre("NOT_RESTORABLE", "DISK_LOW"));
  EXPECT_THAT(findings[0].message, testing::HasSubstr("ranks 1, 2 are on no live node"));
  EXPECT_EQ(findings[0].subject, "job lm");
}

TEST(HealthTest, RestorableBehindCommittedIsAWarning) {
  ClusterSnapshot snapshot = HealthySnapshot();
  Set(snapshot.status.mutable_jobs(0)->mutable_restorable(), 1, 18);
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("RESTORE_BEHIND"));
}

TEST(HealthTest, StaleOnlyAfterRanksJoined) {
  ClusterSnapshot snapshot = HealthySnapshot();
  snapshot.now_wall_nanos += 2 * kStale;
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("CHECKPOINT_STALE"));
  snapshot.status.mutable_jobs(0)->set_ranks_joined(0);
  EXPECT_THAT(CodesOf(snapshot), IsEmpty());
}

TEST(HealthTest, DiskStaleWhileMemoryIsCurrent) {
  ClusterSnapshot snapshot = HealthySnapshot();
  snapshot.versions["lm"].mutable_versions(1)->set_wall_nanos(kNow - 2 * kStale);
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("DISK_STALE"));
}

TEST(HealthTest, ALostStoreIsAnError) {
  ClusterSnapshot snapshot;
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("NO_NODES"));
  EXPECT_EQ(WorstLevel(Examine(snapshot, kStale)), HealthLevel::kError);
  auto* refused = snapshot.status.add_refused();
  refused->set_node("n0");
  refused->set_why("it has seen epoch 9");
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("NODE_REFUSED", "NO_NODES"));
  snapshot = HealthySnapshot();
  auto* other = snapshot.status.mutable_nodes(0)->add_other_lives();
  other->set_life(0xa);
  other->set_job("lm");
  other->set_shards(3);
  Set(other->mutable_newest(), 3, 420);
  const std::vector<Finding> findings = Examine(snapshot, kStale);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, "OTHER_LIFE");
  EXPECT_EQ(findings[0].level, HealthLevel::kError);
  EXPECT_THAT(findings[0].message, testing::HasSubstr("000000000000000a"));
  EXPECT_THAT(findings[0].message, testing::HasSubstr("holdfast adopt --dry-run"));
}

TEST(HealthTest, AJobThatCommitsNothingIsAnError) {
  ClusterSnapshot snapshot = HealthySnapshot();
  auto* job = snapshot.status.mutable_jobs(0);
  job->clear_memory_committed();
  job->clear_disk_committed();
  job->clear_restorable();
  job->set_committed_total(0);
  job->set_committed_wall_nanos(0);
  job->set_aborted_total(2);
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("NO_CHECKPOINT"));
  job->set_aborted_total(300);
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("NOTHING_COMMITS"));
  EXPECT_EQ(WorstLevel(Examine(snapshot, kStale)), HealthLevel::kError);
  job->set_state("finished");
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("NOTHING_COMMITS"));
}

TEST(HealthTest, PeerStaleOnlyWithParityGroups) {
  ClusterSnapshot snapshot = HealthySnapshot();
  auto* old = snapshot.versions["lm"].add_versions();
  Set(old->mutable_version(), 1, 5);
  old->set_wall_nanos(kNow - 2 * kStale);
  Set(snapshot.status.mutable_jobs(0)->mutable_peer_committed(), 1, 5);
  EXPECT_THAT(CodesOf(snapshot), IsEmpty());
  snapshot.status.mutable_jobs(0)->set_peer_members(4);
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("PEER_STALE"));
}

TEST(HealthTest, DisputedVersionsAreAnErrorWhileTheNewestIsDisputed) {
  ClusterSnapshot snapshot = HealthySnapshot();
  auto* newest = snapshot.versions["lm"].mutable_versions(0);
  newest->add_disputed("'w', bytes 0 to 8: rank 1 differs from ranks 0, 2");
  const auto findings = Examine(snapshot, kStale);
  ASSERT_THAT(CodesOf(snapshot), ElementsAre("DISPUTED"));
  EXPECT_THAT(findings[0].message, testing::HasSubstr("rank 1 differs from ranks 0, 2"));
  EXPECT_EQ(findings[0].subject, "job lm");
  EXPECT_EQ(NameOf(WorstLevel(findings)), "HOLDFAST_ERR");
  auto* later = snapshot.versions["lm"].add_versions();
  *later = *newest;
  later->clear_disputed();
  later->mutable_version()->set_step(newest->version().step() + 1);
  EXPECT_EQ(NameOf(WorstLevel(Examine(snapshot, kStale))), "HOLDFAST_WARN");
  newest->set_abandoned(true);
  EXPECT_THAT(CodesOf(snapshot), IsEmpty());
}

TEST(HealthTest, AnUnprotectedJobIsReportedAndNoProblem) {
  ClusterSnapshot snapshot = HealthySnapshot();
  snapshot.status.mutable_jobs(0)->set_not_protected_why("all ranks are on one node");
  const auto findings = Examine(snapshot, kStale);
  ASSERT_THAT(CodesOf(snapshot), ElementsAre("NOT_PROTECTED"));
  EXPECT_THAT(findings[0].message, testing::HasSubstr("all ranks are on one node"));
  EXPECT_EQ(NameOf(WorstLevel(findings)), "HOLDFAST_OK");
  snapshot.status.mutable_nodes(0)->set_disk_free_percent(7);
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("DISK_LOW", "NOT_PROTECTED"));
  snapshot.status.mutable_jobs(0)->set_ranks_joined(3);
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("DISK_LOW", "RANKS_MISSING"));
}

TEST(HealthTest, AVersionThatLacksShardsOnDiskIsUnderProtected) {
  ClusterSnapshot snapshot = HealthySnapshot();
  auto* job = snapshot.status.mutable_jobs(0);
  for (uint64_t step : {18, 17}) {
    auto* lacks = job->add_under_protected();
    Set(lacks->mutable_version(), 1, step);
    lacks->set_shards(8);
    lacks->set_present(6);
    lacks->set_ordered(1);
    lacks->set_why("rank-1 of node b, parity-1 of node b");
  }
  const auto findings = Examine(snapshot, kStale);
  ASSERT_THAT(CodesOf(snapshot), ElementsAre("UNDER_PROTECTED"));
  EXPECT_EQ(findings[0].message,
            "1-18 has 6 of 8 shards on disk, 1 being rebuilt now: missing rank-1 of node b, "
            "parity-1 of node b; and 1 older version");
  EXPECT_EQ(NameOf(WorstLevel(findings)), "HOLDFAST_WARN");
}

TEST(HealthTest, WaitingOrFailedRunsAndQuarantinedNodesAreWarnings) {
  ClusterSnapshot snapshot = HealthySnapshot();
  for (const char* phase : {"running", "waiting", "finished", "failed", "stopped"}) {
    auto* run = snapshot.runs.add_runs();
    run->mutable_spec()->set_job(phase);
    run->set_phase(phase);
    run->set_why("because");
  }
  auto* node = snapshot.runs.add_quarantine();
  node->set_node("n1");
  node->set_why("broke three launches");
  const auto findings = Examine(snapshot, kStale);
  ASSERT_THAT(CodesOf(snapshot), ElementsAre("NODE_QUARANTINED", "RUN_WAITING", "RUN_FAILED"));
  EXPECT_EQ(findings[0].subject, "node n1");
  EXPECT_THAT(findings[0].message, testing::HasSubstr("broke three launches"));
  EXPECT_EQ(findings[1].subject, "job waiting");
}

TEST(HealthTest, JobWithoutAnyCommit) {
  ClusterSnapshot snapshot;
  snapshot.now_wall_nanos = kNow;
  auto* job = snapshot.status.add_jobs();
  job->set_job("new");
  job->set_world(4);
  job->set_ranks_joined(3);
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("NO_NODES", "RANKS_MISSING", "NO_CHECKPOINT"));
}

TEST(HealthTest, AnEndedJobMissesNoRanksAndNoCheckpoint) {
  for (const std::string state : {"ended", "finished"}) {
    ClusterSnapshot snapshot = HealthySnapshot();
    coordinator::JobStatus* job = snapshot.status.mutable_jobs(0);
    job->set_state(state);
    job->set_ranks_joined(1);
    job->set_committed_total(0);  // as after a restart of the coordinator
    snapshot.now_wall_nanos += 3600 * kSecond;
    EXPECT_THAT(CodesOf(snapshot), IsEmpty()) << state;
    EXPECT_EQ(HealthOf(snapshot, *job).phase, state);
  }
}

TEST(HealthTest, ANewestVersionThatIsNotAtEveryTierIsAFinding) {
  ClusterSnapshot snapshot = HealthySnapshot();
  coordinator::JobStatus* job = snapshot.status.mutable_jobs(0);
  job->set_state("finished");
  job->set_not_durable_why("version 3-120 is the newest and not on disk");
  EXPECT_THAT(CodesOf(snapshot), ElementsAre("NOT_DURABLE"));
  EXPECT_EQ(WorstLevel(Examine(snapshot, kStale)), HealthLevel::kWarn);
}

}  // namespace
}  // namespace holdfast::view
