#include "agent/pipeline/rank_slots.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "agent/arena/segment.h"
#include "tests/agent/pipeline/harness.h"

namespace holdfast::agent {
namespace {

constexpr uint64_t kImageBytes = 1000;

VersionId At(uint64_t step) { return {Incarnation{1}, Step{step}}; }

/// One rank's slots without the threads of its pipeline.
class RankSlotsTest : public testing::Test {
 protected:
  RankSlotsTest() {
    SegmentShape shape;
    shape.id = 1;
    shape.owner = {"job", Rank{0}, 0};
    shape.slots = 2;
    shape.slot_bytes = 2 << 20;
    segment_ = MappedSegment::Create(shape).value();
    slots_ = std::make_unique<RankSlots>(*segment_, /*disk_every_steps=*/1, /*peer_every_steps=*/2,
                                         signal_);
    job_.job = "job";
    job_.incarnation = Incarnation{1};
  }

  ShardSeal SealOf(VersionId version) {
    ShardSeal seal;
    seal.identity = {"job", version, Rank{0}, 1};
    seal.image_bytes = kImageBytes;
    seal.chunk_crcs = {0};
    return seal;
  }
  Result<uint32_t> Begin(uint64_t step) {
    return slots_->saves().BeginSave(At(step), 1, kImageBytes, &freed_);
  }
  /// Runs a complete save.
  void Save(uint64_t step) {
    const auto slot = Begin(step);
    ASSERT_TRUE(slot) << slot.error().ToString();
    ASSERT_TRUE(slots_->saves().EndSave(*slot, At(step)).ok());
    const auto taken = slots_->sealing().TakeSave();
    ASSERT_TRUE(taken.has_value());
    ASSERT_TRUE(slots_->sealing().PublishChecksummed(*slot, kImageBytes));
    ASSERT_TRUE(slots_->sealing().SealSave(*slot, SealOf(At(step))).ok());
  }
  void Commit(uint64_t step) {
    job_.committed[Tier::kMemory] = At(step);
    slots_->SetJobState(job_);
  }

  std::unique_ptr<MappedSegment> segment_;
  ChangeSignal signal_;
  std::unique_ptr<RankSlots> slots_;
  JobState job_;
  std::vector<FreedSlot> freed_;
};

TEST_F(RankSlotsTest, APinnedSlotIsNotFreed) {
  Save(1);
  Save(2);
  Commit(2);
  const auto pinned = slots_->pins().Pin(At(1));
  ASSERT_TRUE(pinned);
  EXPECT_FALSE(slots_->saves().HasRoom());
  EXPECT_EQ(Begin(3).error().code(), ErrorCode::kResourceExhausted);
  slots_->pins().Unpin(*pinned);
  EXPECT_TRUE(slots_->saves().HasRoom());
  EXPECT_TRUE(Begin(3));
  ASSERT_EQ(freed_.size(), 1U);
  EXPECT_EQ(freed_[0].version, At(1));
  EXPECT_FALSE(slots_->view().Has(At(1)));
}

TEST_F(RankSlotsTest, ADiscardedSlotIsFreedWhenItsLastUserLeaves) {
  Save(1);
  const auto pinned = slots_->pins().Pin(At(1));
  ASSERT_TRUE(pinned);
  ASSERT_TRUE(slots_->pins().Discard(At(1)).ok());
  EXPECT_FALSE(slots_->pins().StaysAfterUnpin(*pinned));
  EXPECT_FALSE(slots_->view().Has(At(1)));
  EXPECT_EQ(segment_->record(*pinned).state, SlotState::kSealed);
  slots_->pins().Unpin(*pinned);
  EXPECT_EQ(segment_->record(*pinned).state, SlotState::kFree);
}

TEST_F(RankSlotsTest, TheSignalIsRaisedOnceForEachVersionToProtect) {
  job_.group = *GroupPlan::Make(
      {{"node-0", "", 0, {{Rank{0}, 4096}}}, {"node-1", "", 1, {{Rank{1}, 4096}}}}, 1);
  slots_->SetJobState(job_);
  ASSERT_TRUE(Begin(1));  // not divisible by 2
  EXPECT_EQ(signal_.count(), 0U);
  EXPECT_FALSE(slots_->peers().NextForPeers());
  const auto slot = Begin(2);
  ASSERT_TRUE(slot);
  EXPECT_EQ(signal_.count(), 1U);
  EXPECT_EQ(slots_->peers().NextForPeers()->version, At(2));
  slots_->SetJobState(job_);
  EXPECT_EQ(signal_.count(), 1U);
  ASSERT_TRUE(slots_->saves().AbandonSave(*slot, At(2), AbortedError("test")).ok());
  EXPECT_FALSE(slots_->peers().NextForPeers());
  ASSERT_TRUE(Begin(4));
  EXPECT_EQ(signal_.count(), 2U);
}

// The store was replaced by a backup of itself, which has the incarnation. The nodes build no
// parity for versions of the earlier life: the coordinator does not count them.
TEST_F(RankSlotsTest, AVersionOfAnotherLifeNeedsNoParity) {
  job_.group = *GroupPlan::Make(
      {{"node-0", "", 0, {{Rank{0}, 4096}}}, {"node-1", "", 1, {{Rank{1}, 4096}}}}, 1);
  slots_->SetLife(LifeId{1}, LifeId{1});
  slots_->SetJobState(job_);
  Save(2);
  ASSERT_TRUE(slots_->peers().NextForPeers());
  slots_->SetLife(LifeId{2}, LifeId{1});
  EXPECT_FALSE(slots_->peers().NextForPeers());
  slots_->SetJobState(job_);
  EXPECT_FALSE(slots_->peers().NextForPeers());
  Save(4);
  EXPECT_EQ(slots_->peers().NextForPeers()->version, At(4));
}

TEST_F(RankSlotsTest, ParityOfAnotherLifeStaysUntilItIsOnDisk) {
  SegmentShape shape;
  shape.id = 2;
  shape.owner = {"job", ParityRank(0), 0};
  shape.slots = 2;
  shape.slot_bytes = 2 << 20;
  const auto segment = MappedSegment::Create(shape).value();
  RankSlots parity(*segment, 1, 1, signal_);
  parity.SetLife(LifeId{1}, LifeId{1});
  parity.SetJobState(job_);
  std::vector<FreedSlot> freed;
  const auto build = [&](uint64_t step) -> Status {
    const auto slot = parity.fills().LeaseToFill(At(step), 1, kImageBytes, &freed);
    if (!slot) return slot.error();
    ShardSeal seal = SealOf(At(step));
    seal.identity.rank = ParityRank(0);
    seal.life = parity.life();
    return parity.fills().SealBuilt(*slot, seal);
  };
  ASSERT_TRUE(build(2).ok());
  ASSERT_TRUE(build(3).ok());
  parity.SetLife(LifeId{2}, LifeId{1});
  job_.incarnation = Incarnation{2};  // of the new life
  parity.SetJobState(job_);
  EXPECT_EQ(build(10).code(), ErrorCode::kResourceExhausted);
  EXPECT_TRUE(freed.empty());
  EXPECT_TRUE(parity.view().Has(At(2)));
  const auto to_disk = parity.disk().TakeDisk();
  ASSERT_TRUE(to_disk);
  parity.disk().FinishDisk(*to_disk, /*given_up=*/false);
  EXPECT_TRUE(build(10).ok());
  ASSERT_EQ(freed.size(), 1U);
  EXPECT_EQ(freed[0].version, to_disk->identity.version);
}

TEST_F(RankSlotsTest, AFlushLastsUntilTheCommittedVersionIsWritten) {
  Save(1);
  job_.target_step[Tier::kDisk] = Step{100};  // nothing is due on disk
  Commit(1);
  EXPECT_EQ(slots_->view().Kept(), std::vector<VersionId>{At(1)});
  slots_->disk().StartFlush();
  EXPECT_FALSE(slots_->disk().AwaitFlushed(Clock::Real().Now()));
  const auto job = slots_->disk().TakeDisk();
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->identity.version, At(1));
  EXPECT_FALSE(slots_->disk().AwaitFlushed(Clock::Real().Now()));
  slots_->disk().FinishDisk(*job, /*given_up=*/false);
  EXPECT_TRUE(slots_->disk().AwaitFlushed(Clock::Real().Now()));
}

TEST_F(RankSlotsTest, APeerFollowsASaveFromItsFirstByteToItsSeal) {
  const std::atomic<bool> cancelled{false};
  const auto soon = Clock::Real().Now() + std::chrono::milliseconds(20);
  const auto later = Clock::Real().Now() + std::chrono::seconds(20);
  const auto slot = Begin(1);
  ASSERT_TRUE(slot);
  const auto followed = slots_->peers().Follow(At(1), cancelled, later);
  ASSERT_TRUE(followed);
  EXPECT_EQ(slots_->peers().AwaitBytes(*followed, 1, cancelled, soon).error().code(),
            ErrorCode::kDeadlineExceeded);
  ASSERT_TRUE(slots_->sealing().TakeSave().has_value());
  slots_->sealing().PublishChecksummed(*slot, 500);
  EXPECT_EQ(*slots_->peers().AwaitBytes(*followed, 400, cancelled, later), 500U);
  slots_->sealing().PublishChecksummed(*slot, kImageBytes);
  ASSERT_TRUE(slots_->saves().EndSave(*slot, At(1)).ok());
  ASSERT_TRUE(slots_->sealing().SealSave(*slot, SealOf(At(1))).ok());
  EXPECT_TRUE(slots_->peers().AwaitSeal(*followed, cancelled, later));
  slots_->pins().Unpin(*followed);
  EXPECT_EQ(slots_->peers().Follow(At(0), cancelled, later).error().code(), ErrorCode::kNotFound);
}

TEST_F(RankSlotsTest, ARestoreThatIsDroppedLeavesAFreeSlot) {
  const auto slot = slots_->fills().LeaseToFill(At(7), 1, kImageBytes, &freed_);
  ASSERT_TRUE(slot);
  EXPECT_FALSE(slots_->view().Has(At(7)));
  slots_->fills().DropFilled(*slot);
  EXPECT_EQ(segment_->record(*slot).state, SlotState::kFree);
  const auto again = slots_->fills().LeaseToFill(At(7), 1, kImageBytes, &freed_);
  ASSERT_TRUE(again);
  ASSERT_TRUE(slots_->fills().SealRestored(*again, SealOf(At(7))).ok());
  EXPECT_TRUE(slots_->view().Has(At(7)));
  slots_->Stop();
  EXPECT_FALSE(slots_->disk().TakeDisk().has_value());  // disk has the restored shard
}

}  // namespace
}  // namespace holdfast::agent
