#include "client/cli/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::cli {
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
ClusterView HealthyView() {
  ClusterView view;
  view.now_wall_nanos = kNow;
  for (const char* name : {"n0", "n1"}) {
    auto* node = view.status.add_nodes();
    node->set_node(name);
    node->set_alive(true);
    node->set_disk_free_percent(60);
    node->set_seen_wall_nanos(kNow - kSecond);
  }
  auto* job = view.status.add_jobs();
  job->set_job("lm");
  job->set_incarnation(1);
  job->set_world(4);
  job->set_ranks_joined(4);
  Set(job->mutable_memory_committed(), 1, 20);
  Set(job->mutable_disk_committed(), 1, 18);
  Set(job->mutable_restorable(), 1, 20);
  job->set_committed_total(20);
  job->set_committed_wall_nanos(kNow - 2 * kSecond);
  auto& versions = view.versions["lm"];
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
  return view;
}

std::vector<std::string> CodesOf(const ClusterView& view) {
  std::vector<std::string> codes;
  for (const Finding& finding : Examine(view, kStale)) codes.push_back(finding.code);
  return codes;
}

TEST(HealthTest, NothingToSay) {
  ClusterView view = HealthyView();
  EXPECT_THAT(CodesOf(view), IsEmpty());
  EXPECT_EQ(NameOf(Gravest(Examine(view, kStale))), "HOLDFAST_OK");
  JobView job = ViewOf(view, view.status.jobs(0));
  EXPECT_EQ(job.phase, "joined");
  EXPECT_EQ(job.pending_bytes, 512U);
  EXPECT_EQ(job.memory_committed_wall_nanos, kNow - 2 * kSecond);
  EXPECT_EQ(job.disk_committed_wall_nanos, kNow - 4 * kSecond);
}

TEST(HealthTest, NodeDownIsAWarningUntilTheLastIsGone) {
  ClusterView view = HealthyView();
  view.status.mutable_nodes(0)->set_alive(false);
  EXPECT_THAT(CodesOf(view), ElementsAre("NODE_DOWN"));
  EXPECT_EQ(NameOf(Gravest(Examine(view, kStale))), "HOLDFAST_WARN");
  view.status.mutable_nodes(1)->set_alive(false);
  EXPECT_THAT(CodesOf(view), ElementsAre("NODE_DOWN", "NODE_DOWN"));
  EXPECT_EQ(NameOf(Gravest(Examine(view, kStale))), "HOLDFAST_ERR");
}

TEST(HealthTest, Disks) {
  ClusterView view = HealthyView();
  view.status.mutable_nodes(0)->set_disk_free_percent(7);
  EXPECT_THAT(CodesOf(view), ElementsAre("DISK_LOW"));
  view.status.mutable_nodes(0)->add_warnings("disk full: no room for lm/1-21/rank-0");
  EXPECT_THAT(CodesOf(view), ElementsAre("DISK_FULL"));
  view.status.mutable_nodes(1)->add_warnings("disk failed: fsync: Input/output error");
  view.status.mutable_nodes(1)->add_warnings("io_uring is refused here");
  EXPECT_THAT(CodesOf(view), ElementsAre("DISK_FULL", "DISK_FAILED", "NODE_WARNING"));
  view.status.mutable_nodes(1)->clear_warnings();
  view.status.mutable_nodes(1)->add_warnings("quarantined files: 2 in quarantine/");
  EXPECT_THAT(CodesOf(view), ElementsAre("DISK_FULL", "QUARANTINED_FILES"));
}

TEST(HealthTest, NotRestorableIsAnErrorAndComesFirst) {
  ClusterView view = HealthyView();
  view.status.mutable_nodes(0)->set_disk_free_percent(7);
  view.status.mutable_jobs(0)->clear_restorable();
  view.status.mutable_jobs(0)->set_not_restorable_why("ranks 1, 2 are on no live node");
  auto findings = Examine(view, kStale);
  ASSERT_THAT(CodesOf(view), ElementsAre("NOT_RESTORABLE", "DISK_LOW"));
  EXPECT_THAT(findings[0].message, testing::HasSubstr("ranks 1, 2 are on no live node"));
  EXPECT_EQ(findings[0].subject, "job lm");
}

TEST(HealthTest, RestorableBehindCommitted) {
  ClusterView view = HealthyView();
  Set(view.status.mutable_jobs(0)->mutable_restorable(), 1, 18);
  EXPECT_THAT(CodesOf(view), ElementsAre("RESTORE_BEHIND"));
}

TEST(HealthTest, StaleOnlyOnceRanksJoined) {
  ClusterView view = HealthyView();
  view.now_wall_nanos += 2 * kStale;
  EXPECT_THAT(CodesOf(view), ElementsAre("CHECKPOINT_STALE"));
  view.status.mutable_jobs(0)->set_ranks_joined(0);
  EXPECT_THAT(CodesOf(view), IsEmpty());
}

TEST(HealthTest, DiskStaleWhileMemoryGoesOn) {
  ClusterView view = HealthyView();
  view.versions["lm"].mutable_versions(1)->set_wall_nanos(kNow - 2 * kStale);
  EXPECT_THAT(CodesOf(view), ElementsAre("DISK_STALE"));
}

TEST(HealthTest, AStoreThatWasLostIsAnError) {
  ClusterView view;
  EXPECT_THAT(CodesOf(view), ElementsAre("NO_NODES"));
  EXPECT_EQ(Gravest(Examine(view, kStale)), HealthLevel::kError);
  auto* refused = view.status.add_refused();
  refused->set_node("n0");
  refused->set_why("it has seen epoch 9");
  EXPECT_THAT(CodesOf(view), ElementsAre("NODE_REFUSED", "NO_NODES"));
  view = HealthyView();
  auto* other = view.status.mutable_nodes(0)->add_other_lives();
  other->set_life(0xa);
  other->set_job("lm");
  other->set_shards(3);
  Set(other->mutable_newest(), 3, 420);
  const std::vector<Finding> findings = Examine(view, kStale);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, "OTHER_LIFE");
  EXPECT_EQ(findings[0].level, HealthLevel::kError);
  EXPECT_THAT(findings[0].message, testing::HasSubstr("000000000000000a"));
  EXPECT_THAT(findings[0].message, testing::HasSubstr("holdfast adopt --dry-run"));
}

TEST(HealthTest, AJobThatCommitsNothingIsAnError) {
  ClusterView view = HealthyView();
  auto* job = view.status.mutable_jobs(0);
  job->clear_memory_committed();
  job->clear_disk_committed();
  job->clear_restorable();
  job->set_committed_total(0);
  job->set_committed_wall_nanos(0);
  job->set_aborted_total(2);
  EXPECT_THAT(CodesOf(view), ElementsAre("NO_CHECKPOINT"));
  job->set_aborted_total(300);
  EXPECT_THAT(CodesOf(view), ElementsAre("NOTHING_COMMITS"));
  EXPECT_EQ(Gravest(Examine(view, kStale)), HealthLevel::kError);
  job->set_state("finished");
  EXPECT_THAT(CodesOf(view), ElementsAre("NOTHING_COMMITS"));
}

TEST(HealthTest, PeerStaleOnlyWhereThereAreGroups) {
  ClusterView view = HealthyView();
  auto* old = view.versions["lm"].add_versions();
  Set(old->mutable_version(), 1, 5);
  old->set_wall_nanos(kNow - 2 * kStale);
  Set(view.status.mutable_jobs(0)->mutable_peer_committed(), 1, 5);
  EXPECT_THAT(CodesOf(view), IsEmpty());
  view.status.mutable_jobs(0)->set_peer_members(4);
  EXPECT_THAT(CodesOf(view), ElementsAre("PEER_STALE"));
}

TEST(HealthTest, DisputedVersionsAreAnErrorWhileTheNewestIsOne) {
  ClusterView view = HealthyView();
  auto* newest = view.versions["lm"].mutable_versions(0);
  newest->add_disputed("'w', bytes 0 to 8: rank 1 differs from ranks 0, 2");
  const auto findings = Examine(view, kStale);
  ASSERT_THAT(CodesOf(view), ElementsAre("DISPUTED"));
  EXPECT_THAT(findings[0].message, testing::HasSubstr("rank 1 differs from ranks 0, 2"));
  EXPECT_EQ(findings[0].subject, "job lm");
  EXPECT_EQ(NameOf(Gravest(findings)), "HOLDFAST_ERR");
  auto* later = view.versions["lm"].add_versions();
  *later = *newest;
  later->clear_disputed();
  later->mutable_version()->set_step(newest->version().step() + 1);
  EXPECT_EQ(NameOf(Gravest(Examine(view, kStale))), "HOLDFAST_WARN");
  newest->set_abandoned(true);
  EXPECT_THAT(CodesOf(view), IsEmpty());
}

TEST(HealthTest, AnUnprotectedJobIsSaidAndNoFault) {
  ClusterView view = HealthyView();
  view.status.mutable_jobs(0)->set_not_protected_why("all ranks are on one node");
  const auto findings = Examine(view, kStale);
  ASSERT_THAT(CodesOf(view), ElementsAre("NOT_PROTECTED"));
  EXPECT_THAT(findings[0].message, testing::HasSubstr("all ranks are on one node"));
  EXPECT_EQ(NameOf(Gravest(findings)), "HOLDFAST_OK");
  view.status.mutable_nodes(0)->set_disk_free_percent(7);
  EXPECT_THAT(CodesOf(view), ElementsAre("DISK_LOW", "NOT_PROTECTED"));
  view.status.mutable_jobs(0)->set_ranks_joined(3);
  EXPECT_THAT(CodesOf(view), ElementsAre("DISK_LOW", "RANKS_MISSING"));
}

TEST(HealthTest, WhatLacksShardsOnDiskIsUnderProtected) {
  ClusterView view = HealthyView();
  auto* job = view.status.mutable_jobs(0);
  for (uint64_t step : {18, 17}) {
    auto* lacks = job->add_under_protected();
    Set(lacks->mutable_version(), 1, step);
    lacks->set_shards(8);
    lacks->set_present(6);
    lacks->set_ordered(1);
    lacks->set_why("rank-1 of node b, parity-1 of node b");
  }
  const auto findings = Examine(view, kStale);
  ASSERT_THAT(CodesOf(view), ElementsAre("UNDER_PROTECTED"));
  EXPECT_EQ(findings[0].message,
            "1-18 has 6 of 8 shards on disk, 1 being brought back now: missing rank-1 of node b, "
            "parity-1 of node b; and 1 older version");
  EXPECT_EQ(NameOf(Gravest(findings)), "HOLDFAST_WARN");
}

TEST(HealthTest, RunsThatWaitOrFailedAndNodesInQuarantine) {
  ClusterView view = HealthyView();
  for (const char* phase : {"running", "waiting", "finished", "failed", "stopped"}) {
    auto* run = view.runs.add_runs();
    run->mutable_spec()->set_job(phase);
    run->set_phase(phase);
    run->set_why("because");
  }
  auto* node = view.runs.add_quarantine();
  node->set_node("n1");
  node->set_why("broke three launches");
  const auto findings = Examine(view, kStale);
  ASSERT_THAT(CodesOf(view), ElementsAre("NODE_QUARANTINED", "RUN_WAITING", "RUN_FAILED"));
  EXPECT_EQ(findings[0].subject, "node n1");
  EXPECT_THAT(findings[0].message, testing::HasSubstr("broke three launches"));
  EXPECT_EQ(findings[1].subject, "job waiting");
}

TEST(HealthTest, JobWithoutAnyCommit) {
  ClusterView view;
  view.now_wall_nanos = kNow;
  auto* job = view.status.add_jobs();
  job->set_job("new");
  job->set_world(4);
  job->set_ranks_joined(3);
  EXPECT_THAT(CodesOf(view), ElementsAre("NO_NODES", "RANKS_MISSING", "NO_CHECKPOINT"));
}

TEST(HealthTest, AJobThatIsOverMissesNoRanksAndNoCheckpoint) {
  for (const std::string state : {"ended", "finished"}) {
    ClusterView view = HealthyView();
    coordinator::JobStatus* job = view.status.mutable_jobs(0);
    job->set_state(state);
    job->set_ranks_joined(1);
    job->set_committed_total(0);  // of a coordinator that started since
    view.now_wall_nanos += 3600 * kSecond;
    EXPECT_THAT(CodesOf(view), IsEmpty()) << state;
    EXPECT_EQ(ViewOf(view, *job).phase, state);
  }
}

TEST(HealthTest, ANewestVersionThatIsNotAtEveryTierIsAFinding) {
  ClusterView view = HealthyView();
  coordinator::JobStatus* job = view.status.mutable_jobs(0);
  job->set_state("finished");
  job->set_not_durable_why("version 3-120 is the newest and not on disk");
  EXPECT_THAT(CodesOf(view), ElementsAre("NOT_DURABLE"));
  EXPECT_EQ(Gravest(Examine(view, kStale)), HealthLevel::kWarn);
}

}  // namespace
}  // namespace holdfast::cli
