// A rank whose invariants are violated: it saves, seals and serves nothing more, and its memory
// stays. Other ranks of the node are not affected.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>

#include "agent/arena/memory_file.h"
#include "agent/arena/segment.h"
#include "agent/pipeline/rank_slots.h"
#include "tests/agent/pipeline/harness.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

constexpr uint64_t kImageBytes = 1000;
constexpr uint64_t kTensorBytes = 2'500'000;
// docs/formats/ledger.md: the header takes a page; a slot begins with state, incarnation, step.
constexpr size_t kFirstSlot = 4096;
constexpr size_t kStepOffset = kFirstSlot + 16;

VersionId At(uint64_t step) { return {Incarnation{1}, Step{step}}; }

class InvariantsTest : public testing::Test {
 protected:
  InvariantsTest() {
    SegmentShape shape;
    shape.id = 1;
    shape.owner = {"job", Rank{0}, 0};
    shape.slots = 2;
    shape.slot_bytes = 2 << 20;
    segment_ = MappedSegment::Create(shape).value();
    ledger_ = MemoryFile::Adopt(UniqueFd(::dup(segment_->ledger_fd()))).value();
    slots_ = std::make_unique<RankSlots>(*segment_, 1, 2, signal_);
  }
  static ShardSeal SealOf(VersionId version) {
    ShardSeal seal;
    seal.identity = {"job", version, Rank{0}, 1};
    seal.image_bytes = kImageBytes;
    seal.chunk_crcs = {0};
    return seal;
  }
  /// Begins and ends a save, up to the seal.
  uint32_t Copy(uint64_t step) {
    const auto slot = slots_->saves().BeginSave(At(step), 1, kImageBytes, &freed_);
    EXPECT_TRUE(slot) << slot.error().ToString();
    EXPECT_TRUE(slots_->saves().EndSave(*slot, At(step)).ok());
    EXPECT_TRUE(slots_->sealing().TakeSave().has_value());
    return *slot;
  }
  Status Seal(uint32_t slot, const ShardSeal& seal) {
    slots_->sealing().PublishChecksummed(slot, kImageBytes);
    return slots_->sealing().SealSave(slot, seal);
  }
  void ExpectStopped(const std::string& invariant) {
    EXPECT_THAT(segment_->invariants().what(), HasSubstr(invariant));
    const auto save = slots_->saves().BeginSave(At(50), 1, kImageBytes, &freed_);
    EXPECT_EQ(save.error().code(), ErrorCode::kInternal);
    EXPECT_THAT(save.error().message(), HasSubstr("job/rank-0 has stopped"));
    EXPECT_EQ(slots_->pins().Pin(At(1)).error().code(), ErrorCode::kInternal);
    EXPECT_EQ(slots_->fills().LeaseToFill(At(1), 1, kImageBytes, &freed_).error().code(),
              ErrorCode::kInternal);
    EXPECT_EQ(slots_->Vacate(true).error().code(), ErrorCode::kInternal);
    EXPECT_FALSE(slots_->sealing().TakeSave().has_value()) << "the sealer's thread ends";
    EXPECT_FALSE(slots_->disk().TakeDisk().has_value()) << "the persister's thread ends";
  }

  std::unique_ptr<MappedSegment> segment_;
  std::optional<MemoryFile> ledger_;
  ChangeSignal signal_;
  std::unique_ptr<RankSlots> slots_;
  std::vector<FreedSlot> freed_;
};

TEST_F(InvariantsTest, CorrectUseViolatesNothing) {
  const uint32_t slot = Copy(1);
  EXPECT_TRUE(Seal(slot, SealOf(At(1))).ok());
  EXPECT_TRUE(slots_->pins().Pin(At(1)).has_value());
  EXPECT_EQ(segment_->invariants().what(), "");
}

TEST_F(InvariantsTest, ARecordThatSomeoneElseChangedIsNotSealed) {
  const uint32_t slot = Copy(1);
  uint64_t step = 9;
  std::memcpy(ledger_->memory().data() + kStepOffset, &step, sizeof(step));
  EXPECT_EQ(Seal(slot, SealOf(At(1))).code(), ErrorCode::kInternal);
  EXPECT_EQ(segment_->record(slot).state, SlotState::kLeased) << "the memory stays as it is";
  ExpectStopped("intact.ok()");
}

TEST_F(InvariantsTest, APinnedSlotHasTheVersionThatTheLedgerHas) {
  const uint32_t slot = Copy(1);
  ASSERT_TRUE(Seal(slot, SealOf(At(1))).ok());
  uint64_t step = 9;
  std::memcpy(ledger_->memory().data() + kStepOffset, &step, sizeof(step));
  EXPECT_EQ(slots_->pins().Pin(At(1)).error().code(), ErrorCode::kInternal);
  ExpectStopped("record.version == version");
}

TEST_F(InvariantsTest, ASealNeedsEveryByteChecksummed) {
  const uint32_t slot = Copy(1);
  EXPECT_TRUE(slots_->sealing().PublishChecksummed(slot, kImageBytes - 1));
  EXPECT_EQ(slots_->sealing().SealSave(slot, SealOf(At(1))).code(), ErrorCode::kInternal);
  EXPECT_EQ(segment_->record(slot).state, SlotState::kLeased);
  ExpectStopped("entry.checksummed == entry.image_bytes");
}

TEST_F(InvariantsTest, ASealHasOneChecksumForEachChunk) {
  const uint32_t slot = Copy(1);
  ShardSeal seal = SealOf(At(1));
  seal.chunk_crcs.push_back(0);
  EXPECT_EQ(Seal(slot, seal).code(), ErrorCode::kInternal);
  ExpectStopped("seal.chunk_crcs.size() == ChunkCount(entry.image_bytes)");
}

TEST_F(InvariantsTest, ProgressDoesNotGoBack) {
  const uint32_t slot = Copy(1);
  EXPECT_TRUE(slots_->sealing().PublishChecksummed(slot, 500));
  EXPECT_FALSE(slots_->sealing().PublishChecksummed(slot, 400));
  ExpectStopped("bytes >= entry.checksummed");
}

TEST_F(InvariantsTest, AUseEndsOnce) {
  const uint32_t slot = Copy(1);
  ASSERT_TRUE(Seal(slot, SealOf(At(1))).ok());
  slots_->pins().Unpin(slot);
  ExpectStopped("users > 0");
}

TEST_F(InvariantsTest, ASlotThatDoesNotExistIsASafeAddress) {
  EXPECT_EQ(segment_->slot(2).data(), segment_->slot(0).data());
  ExpectStopped("index < shape_.slots");
}

/// Waits until `done` returns true, for at most ten seconds.
bool Eventually(const std::function<bool()>& done) {
  for (int i = 0; i < 1000; ++i) {
    if (done()) return true;
    Clock::Real().SleepFor(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(StoppedRanksTest, ANodeWithdrawsTheMemoryOfTheRankAndServesTheOthers) {
  TestNode node;
  ASSERT_TRUE(node.Start().ok());
  TestTrainer::Options second;
  second.rank = 1;
  second.world = 2;
  TestTrainer::Options first;
  first.world = 2;
  auto a = TestTrainer::Connect(node.socket(), first);
  auto b = TestTrainer::Connect(node.socket(), second);
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(a->Save(7, kTensorBytes));
  ASSERT_TRUE(b->Save(7, kTensorBytes));
  ASSERT_TRUE(a->AwaitNotice(NoticeKind::kCommitted, 7, Tier::kMemory));
  ASSERT_TRUE(node.coordinator.Holds(a->Key(7), Tier::kMemory));

  Segment* memory = node.arena->Find("job", Rank{0});
  ASSERT_NE(memory, nullptr);
  memory->slot(1000);  // violates an invariant of this rank
  ASSERT_TRUE(Eventually([&] { return node.coordinator.WasRemoved(a->Key(7), Tier::kMemory); }));
  EXPECT_TRUE(Eventually([&] {
    const std::vector<std::string> warnings = node.coordinator.warnings();
    return !warnings.empty() && warnings[0].starts_with("invariant violated: rank-0 of job");
  }));
  EXPECT_TRUE(node.coordinator.Holds(b->Key(7), Tier::kMemory));
  EXPECT_FALSE(node.coordinator.WasRemoved(b->Key(7), Tier::kMemory));

  // The trainer gets an error and stays connected; the other rank saves on.
  const auto refused = a->BeginSave(8, kTensorBytes);
  ASSERT_TRUE(refused) << refused.error().ToString();
  EXPECT_EQ(refused->code, static_cast<uint32_t>(ErrorCode::kInternal));
  EXPECT_THAT(GetText(refused->text), HasSubstr("job/rank-0 has stopped"));
  ASSERT_TRUE(b->Save(8, kTensorBytes));
  EXPECT_TRUE(b->AwaitNotice(NoticeKind::kSealed, 8, Tier::kMemory));

  // The keeper has kept the memory: a restarted agent verifies it and serves it again.
  a->HangUp();
  b->HangUp();
  node.Stop();
  ASSERT_TRUE(node.Start().ok());
  ASSERT_TRUE(node.node->AwaitAdopted(20'000));
  EXPECT_TRUE(node.coordinator.Holds(a->Key(7), Tier::kMemory));
}

}  // namespace
}  // namespace holdfast::agent
