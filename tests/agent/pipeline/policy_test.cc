#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "agent/pipeline/disk_pace.h"
#include "agent/pipeline/report_queue.h"
#include "agent/pipeline/slot_policy.h"
#include "base/random.h"

namespace holdfast::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

VersionId V(uint64_t incarnation, uint64_t step) { return {Incarnation{incarnation}, Step{step}}; }

SlotInfo Sealed(uint32_t slot, VersionId version) {
  SlotInfo info;
  info.slot = slot;
  info.state = SlotState::kSealed;
  info.version = version;
  return info;
}

JobState Job(uint64_t incarnation, std::optional<VersionId> memory) {
  JobState job;
  job.job = "job";
  job.incarnation = Incarnation{incarnation};
  job.committed[Tier::kMemory] = memory;
  return job;
}

TEST(SlotPolicy, NothingIsFreedWithoutAJobState) {
  const std::vector<SlotInfo> slots = {Sealed(0, V(1, 1)), Sealed(1, V(1, 2))};
  EXPECT_THAT(FreeableSlots(slots, nullptr), IsEmpty());
}

TEST(SlotPolicy, OnlyVersionsReplacedByANewerCommitAreFreed) {
  const std::vector<SlotInfo> slots = {Sealed(0, V(1, 3)), Sealed(1, V(1, 1)), Sealed(2, V(1, 2))};
  JobState job = Job(1, std::nullopt);
  EXPECT_THAT(FreeableSlots(slots, &job), IsEmpty());
  job.committed[Tier::kMemory] = V(1, 1);
  EXPECT_THAT(FreeableSlots(slots, &job), IsEmpty());
  job.committed[Tier::kMemory] = V(1, 2);
  EXPECT_THAT(FreeableSlots(slots, &job), ElementsAre(1));
  job.committed[Tier::kMemory] = V(1, 3);
  EXPECT_THAT(FreeableSlots(slots, &job), ElementsAre(1, 2));  // oldest first
}

TEST(SlotPolicy, SlotsInUseHeldOrUnsealedStay) {
  std::vector<SlotInfo> slots = {Sealed(0, V(1, 1)), Sealed(1, V(1, 2)), Sealed(2, V(1, 3))};
  slots[0].in_use = true;
  slots[1].held = true;
  slots[2].state = SlotState::kLeased;
  JobState job = Job(1, V(1, 9));
  job.aborted = {V(1, 1), V(1, 2), V(1, 3)};
  EXPECT_THAT(FreeableSlots(slots, &job), IsEmpty());
}

TEST(SlotPolicy, TheVersionCommittedAtPeerStaysUntilANewerOneIs) {
  const std::vector<SlotInfo> slots = {Sealed(0, V(1, 1)), Sealed(1, V(1, 2)), Sealed(2, V(1, 3))};
  JobState job = Job(1, V(1, 3));
  job.committed[Tier::kPeer] = V(1, 1);
  // The newest version in memory is two versions ahead of the peer tier. The shards of a lost node
  // can be decoded only for the oldest version, which has parity.
  EXPECT_THAT(FreeableSlots(slots, &job), ElementsAre(1));
  job.committed[Tier::kPeer] = V(1, 2);
  EXPECT_THAT(FreeableSlots(slots, &job), ElementsAre(0));
}

TEST(SlotPolicy, ObsoleteParityIsFreed) {
  std::vector<SlotInfo> slots = {Sealed(0, V(1, 3)), Sealed(1, V(1, 5))};
  for (SlotInfo& slot : slots) slot.parity = true;
  JobState job = Job(1, V(1, 3));  // committed at peer
  job.target_step[Tier::kPeer] = Step{5};
  EXPECT_THAT(FreeableSlots(slots, &job), IsEmpty());
  job.target_step[Tier::kPeer] = Step{6};  // 1-5 failed on another member
  EXPECT_THAT(FreeableSlots(slots, &job), ElementsAre(1));
  for (SlotInfo& slot : slots) slot.parity = false;
  EXPECT_THAT(FreeableSlots(slots, &job), IsEmpty());
}

TEST(SlotPolicy, AbortedVersionsAreFreedFirst) {
  const std::vector<SlotInfo> slots = {Sealed(0, V(1, 1)), Sealed(1, V(1, 4)), Sealed(2, V(1, 2))};
  JobState job = Job(1, V(1, 2));
  job.aborted = {V(1, 4)};
  EXPECT_THAT(FreeableSlots(slots, &job), ElementsAre(1, 0));
}

TEST(SlotPolicy, RestoreVersionStaysUntilItsIncarnationHasCommitted) {
  const std::vector<SlotInfo> slots = {Sealed(0, V(1, 5)), Sealed(1, V(1, 7))};
  JobState job = Job(2, V(1, 7));
  job.restore = V(1, 5);
  EXPECT_THAT(FreeableSlots(slots, &job), IsEmpty());
  job.committed[Tier::kMemory] = V(2, 6);
  EXPECT_THAT(FreeableSlots(slots, &job), ElementsAre(0, 1));
}

TEST(SlotPolicy, UncommittedVersionsOfOlderIncarnationsAreFreed) {
  const std::vector<SlotInfo> slots = {Sealed(0, V(1, 5)), Sealed(1, V(1, 6)), Sealed(2, V(1, 7))};
  JobState job = Job(2, V(1, 5));
  EXPECT_THAT(FreeableSlots(slots, &job), ElementsAre(1, 2));
  job.restore = V(1, 5);
  EXPECT_THAT(FreeableSlots(slots, &job), ElementsAre(1, 2));
}

// The newest committed version stays in every state, in every order of freeing.
TEST(SlotPolicy, RandomStatesNeverFreeTheFloor) {
  Random random(20'250'101);
  for (int round = 0; round < 20'000; ++round) {
    JobState job = Job(1 + random.Below(3), std::nullopt);
    std::vector<SlotInfo> slots;
    for (uint32_t i = 0; i < 2 + random.Below(5); ++i) {
      SlotInfo info = Sealed(i, V(1 + random.Below(job.incarnation.value), random.Below(6)));
      info.state = static_cast<SlotState>(random.Below(3));
      info.in_use = random.OneIn(4);
      info.held = random.OneIn(6);
      slots.push_back(info);
    }
    if (!random.OneIn(4)) job.committed[Tier::kMemory] = slots[random.Below(slots.size())].version;
    if (random.OneIn(2)) job.restore = slots[random.Below(slots.size())].version;
    // A committed version is never aborted.
    const VersionId aborted = slots[random.Below(slots.size())].version;
    if (random.OneIn(2) && job.committed[Tier::kMemory] != aborted) job.aborted = {aborted};
    for (uint32_t slot : FreeableSlots(slots, &job)) {
      const SlotInfo& info = slots[slot];
      ASSERT_EQ(info.state, SlotState::kSealed);
      ASSERT_FALSE(info.in_use || info.held);
      ASSERT_NE(job.committed[Tier::kMemory], info.version);
      const bool newer =
          job.committed[Tier::kMemory] && *job.committed[Tier::kMemory] > info.version;
      const bool is_aborted = job.aborted == std::vector{info.version};
      const bool older_run = info.version.incarnation < job.incarnation;
      ASSERT_TRUE(newer || is_aborted || older_run);
      if (job.restore == info.version && !is_aborted) {
        ASSERT_TRUE(job.committed[Tier::kMemory] &&
                    job.committed[Tier::kMemory]->incarnation == job.incarnation);
      }
    }
  }
}

TEST(DiskPace, EveryKthStep) {
  DiskPace pace(10);
  JobState job = Job(1, std::nullopt);
  const std::vector<DiskCandidate> none = {{0, V(1, 11)}, {1, V(1, 19)}};
  EXPECT_FALSE(pace.Choose(none, &job).has_value());
  const std::vector<DiskCandidate> one = {{0, V(1, 19)}, {1, V(1, 20)}};
  EXPECT_EQ(pace.Choose(one, &job), 1U);
  const std::vector<DiskCandidate> next = {{0, V(1, 30)}};
  EXPECT_FALSE(pace.Choose(next, &job).has_value()) << "step 20 is not on all disks yet";
  job.target_step[Tier::kDisk] = Step{21};
  EXPECT_EQ(pace.Choose(next, &job), 0U);
}

// Two ranks with disks of any speed, which receive targets at any time, write the same versions.
TEST(DiskPace, RanksOfDifferentSpeedWriteTheSameVersions) {
  Random random(11);
  for (int round = 0; round < 50; ++round) {
    DiskPace paces[2] = {DiskPace(1), DiskPace(1)};
    JobState jobs[2] = {Job(1, std::nullopt), Job(1, std::nullopt)};
    uint64_t busy_until[2] = {0, 0};
    std::optional<VersionId> writing[2];
    std::set<uint64_t> written[2];
    uint64_t common = 0;
    for (uint64_t step = 1; step <= 300; ++step) {
      for (int rank = 0; rank < 2; ++rank) {
        if (writing[rank] && busy_until[rank] <= step) {
          written[rank].insert(writing[rank]->step.value);
          writing[rank].reset();
        }
        // The last two versions are in memory.
        std::vector<DiskCandidate> held = {{1, V(1, step)}};
        if (step > 1) held.push_back({0, V(1, step - 1)});
        if (writing[rank]) continue;
        if (auto slot = paces[rank].Choose(held, &jobs[rank])) {
          writing[rank] = V(1, *slot == 1 ? step : step - 1);
          busy_until[rank] = step + 1 + random.Below(rank == 0 ? 3 : 9);
        }
      }
      uint64_t newest = 0;
      for (uint64_t both : written[0]) newest = written[1].count(both) != 0 ? both : newest;
      if (newest > common) {
        common = newest;
        for (JobState& job : jobs) job.target_step[Tier::kDisk] = Step{step + 1};
      }
    }
    EXPECT_GT(common, 270U);
    EXPECT_GT(written[0].size(), 20U);
  }
}

TEST(DiskPace, ATargetSelectsOneVersion) {
  DiskPace pace(0);
  EXPECT_FALSE(pace.Choose(std::vector<DiskCandidate>{{0, V(1, 1)}}, nullptr).has_value());
  JobState job = Job(1, std::nullopt);
  const std::vector<DiskCandidate> all = {{0, V(1, 4)}, {1, V(1, 5)}, {2, V(1, 6)}};
  job.target_step[Tier::kDisk] = Step{5};
  EXPECT_EQ(pace.Choose(all, &job), 1U);
  EXPECT_FALSE(pace.Choose(all, &job).has_value());  // a version was chosen for this target
  job.target_step[Tier::kDisk] = Step{7};
  EXPECT_FALSE(pace.Choose(all, &job).has_value());
  EXPECT_EQ(pace.Choose(std::vector<DiskCandidate>{{0, V(1, 8)}}, &job), 0U);
  job.incarnation = Incarnation{2};
  job.target_step[Tier::kDisk] = Step{0};
  EXPECT_FALSE(pace.Choose(all, &job).has_value());  // of the previous incarnation
  EXPECT_EQ(pace.Choose(std::vector<DiskCandidate>{{0, V(2, 3)}}, &job), 0U);
}

TEST(DiskPace, LateParityIsWrittenAfterItsVersion) {
  DiskPace pace(0);
  JobState job = Job(1, std::nullopt);
  job.committed[Tier::kDisk] = V(1, 5);
  job.target_step[Tier::kDisk] = Step{9};
  std::vector<DiskCandidate> held = {{0, V(1, 4)}, {1, V(1, 5)}};
  EXPECT_FALSE(pace.Choose(held, &job).has_value()) << "a rank's shard is on disk already";
  for (DiskCandidate& candidate : held) candidate.parity = true;
  EXPECT_EQ(pace.Choose(held, &job), 1U);
  EXPECT_EQ(pace.Choose(std::vector<DiskCandidate>{{0, V(1, 9)}}, &job), 0U) << "the target";
}

StoredReplica Held(uint64_t step, Tier tier) {
  return {{"job", V(1, step), Rank{0}, 1}, tier, step, 100};
}

TEST(ReportQueue, AReportIsPendingUntilAcknowledged) {
  ReportQueue queue;
  EXPECT_FALSE(queue.AwaitPending(0));
  queue.Add(Held(1, Tier::kMemory));
  EXPECT_TRUE(queue.AwaitPending(0));
  ReportBatch batch = queue.Take();
  ASSERT_EQ(batch.replicas.size(), 1U);
  EXPECT_FALSE(queue.AwaitPending(0));
  queue.Return(std::move(batch));
  EXPECT_TRUE(queue.AwaitPending(0));
  EXPECT_EQ(queue.Take().replicas.size(), 1U);
}

TEST(ReportQueue, ARemovalReplacesAPendingReplica) {
  ReportQueue queue;
  queue.Add(Held(1, Tier::kMemory));
  queue.Add(Held(2, Tier::kMemory));
  queue.Add(RemovedReplica{{"job", V(1, 1), Rank{0}}, Tier::kMemory});
  const ReportBatch batch = queue.Take();
  ASSERT_EQ(batch.replicas.size(), 1U);
  EXPECT_EQ(batch.replicas[0].identity.version, V(1, 2));
  EXPECT_EQ(batch.removed.size(), 1U);
}

TEST(ReportQueue, AReplicaRemovedDuringAReportStaysRemoved) {
  ReportQueue queue;
  queue.Add(Held(1, Tier::kDisk));
  ReportBatch batch = queue.Take();
  queue.Add(RemovedReplica{{"job", V(1, 1), Rank{0}}, Tier::kDisk});
  queue.Return(std::move(batch));
  const ReportBatch again = queue.Take();
  EXPECT_THAT(again.replicas, IsEmpty());
  EXPECT_EQ(again.removed.size(), 1U);
}

// A failed batch has reports of every kind: all of them are sent again, in their order.
TEST(ReportQueue, EveryKindOfReportSurvivesAFailedBatch) {
  ReportQueue queue;
  const ShardKey first{"job", V(1, 3), Rank{0}};
  const ShardKey second{"job", V(1, 4), Rank{0}};
  queue.Add(Held(1, Tier::kMemory));
  queue.Add(Held(1, Tier::kDisk));
  queue.Add(FailedReplica{first, Tier::kMemory, "skipped"});
  queue.Add(FailedReplica{second, Tier::kDisk, "the disk is full"});
  queue.Add(RemovedReplica{first, Tier::kDisk, "damaged"});
  queue.Add(Prepared{17, Status::Ok()});
  queue.Add(Prepared{18, DataLossError("bad")});
  ReportBatch batch = queue.Take();
  EXPECT_TRUE(queue.Take().empty());
  // Newer reports follow those that were taken.
  queue.Add(FailedReplica{{"job", V(1, 5), Rank{0}}, Tier::kMemory, "later"});
  queue.Add(Prepared{19, Status::Ok()});
  queue.Return(std::move(batch));
  EXPECT_TRUE(queue.AwaitPending(0));
  const ReportBatch again = queue.Take();
  EXPECT_EQ(again.replicas.size(), 2U);
  ASSERT_EQ(again.failed.size(), 3U);
  EXPECT_EQ(again.failed[0].key, first);
  EXPECT_EQ(again.failed[1].key, second);
  EXPECT_EQ(again.failed[1].why, "the disk is full");
  EXPECT_EQ(again.failed[2].why, "later");
  ASSERT_EQ(again.removed.size(), 1U);
  EXPECT_EQ(again.removed[0].damage, "damaged");
  ASSERT_EQ(again.prepared.size(), 3U);
  EXPECT_EQ(again.prepared[0].request, 17U);
  EXPECT_EQ(again.prepared[1].outcome.code(), ErrorCode::kDataLoss);
  EXPECT_EQ(again.prepared[2].request, 19U);
}

// Ten thousand failures while the coordinator is away: those that its target may wait for remain.
TEST(ReportQueue, FailuresKeepTheOldestAndTheNewestOfEachRank) {
  ReportQueue queue;
  constexpr uint64_t kSteps = 10'000;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      queue.Add(FailedReplica{{"job", V(1, step), Rank{rank}}, Tier::kDisk, "full"});
    }
  }
  queue.Return(queue.Take());
  const ReportBatch batch = queue.Take();
  ASSERT_EQ(batch.failed.size(), 2 * ReportQueue::kFailuresMax);
  EXPECT_EQ(batch.failed.front().key.version, V(1, 1));
  EXPECT_EQ(batch.failed.back().key.version, V(1, kSteps));
}

// The outcome of a directive is never merged with another: the coordinator waits for each.
TEST(ReportQueue, EveryOutcomeAndTheNewestWaitStayPending) {
  ReportQueue queue;
  constexpr uint64_t kRequests = 5'000;
  for (uint64_t request = 1; request <= kRequests; ++request) {
    queue.Add(Prepared{request, Status::Ok()});
    queue.Add(TierWanted{"job", V(1, request), Tier::kDisk});
  }
  queue.Add(TierWanted{"job", V(1, 3), Tier::kDisk});
  queue.Add(TierWanted{"job", V(1, 3), Tier::kRemote});
  queue.Return(queue.Take());
  const ReportBatch batch = queue.Take();
  EXPECT_EQ(batch.prepared.size(), kRequests);
  EXPECT_EQ(batch.prepared.front().request, 1U);
  ASSERT_EQ(batch.wanted.size(), 2U);
  EXPECT_EQ(batch.wanted[0].version, V(1, kRequests));
  EXPECT_EQ(batch.wanted[1].version, V(1, 3));
}

TEST(ReportQueue, RemovalsBeyondTheLimitNeedAnInventory) {
  ReportQueue queue;
  for (uint64_t step = 1; step <= ReportQueue::kRemovalsMax; ++step) {
    queue.Add(RemovedReplica{{"job", V(1, step), Rank{0}}, Tier::kDisk});
  }
  EXPECT_FALSE(queue.NeedsAttach());
  queue.Add(RemovedReplica{{"job", V(1, 1), Rank{0}}, Tier::kRemote});
  queue.Add(RemovedReplica{{"job", V(2, 1), Rank{0}}, Tier::kDisk});
  EXPECT_TRUE(queue.NeedsAttach());
  // No inventory has a replica of a shared tier, so its removal stays pending.
  const ReportBatch batch = queue.Take();
  ASSERT_EQ(batch.removed.size(), 1U);
  EXPECT_EQ(batch.removed[0].tier, Tier::kRemote);
  EXPECT_TRUE(queue.NeedsAttach());
  EXPECT_TRUE(queue.Inventory().replicas.empty());
  EXPECT_FALSE(queue.NeedsAttach());
}

TEST(ReportQueue, TheInventoryHasEveryReplicaOnce) {
  ReportQueue queue;
  queue.Add(Held(1, Tier::kMemory));
  queue.Add(Held(1, Tier::kDisk));
  queue.Add(FailedReplica{{"job", V(1, 3), Rank{0}}, Tier::kMemory, "skipped"});
  static_cast<void>(queue.Take());
  queue.Add(Held(2, Tier::kMemory));
  EXPECT_EQ(queue.Inventory().replicas.size(), 3U);
  EXPECT_TRUE(queue.Take().empty());
}

}  // namespace
}  // namespace holdfast::agent
