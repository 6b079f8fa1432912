#include <gtest/gtest.h>

#include <map>
#include <thread>
#include <vector>

#include "tests/agent/arena/arena_fixture.h"

// Random sequences of reserve, lease, seal, abandon, free and release are compared with a model.
// The most important rule: no two live leases share a byte.

namespace holdfast::agent {
namespace {

constexpr uint64_t kSlot = kSlotAlign;

struct Held {
  bool sealed = false;
  VersionId version;
  uint64_t image_bytes = 0;
  std::byte stamp{};
  std::span<std::byte> memory;
};

/// The model of one segment: the expected content of each slot.
struct ModelSegment {
  Segment* segment = nullptr;
  std::map<uint32_t, Held> held;
};

class Model {
 public:
  Model(Arena& arena, uint64_t budget_bytes, uint64_t seed)
      : arena_(arena), budget_bytes_(budget_bytes), random_(seed) {}

  void Step() {
    switch (random_.Below(8)) {
      case 0:
        return Reserve();
      case 1:
        return random_.OneIn(4) ? Release() : Lease();
      case 2:
      case 3:
        return Lease();
      case 4:
      case 5:
        return Seal();
      case 6:
        return Abandon();
      default:
        return Free();
    }
  }

  void Check() {
    std::vector<std::span<std::byte>> live;
    uint64_t reserved = 0;
    for (auto& [rank, model] : segments_) {
      Segment& segment = *model.segment;
      reserved += segment.memory().size();
      for (uint32_t i = 0; i < segment.slot_count(); ++i) {
        SlotRecord record = segment.record(i);
        auto found = model.held.find(i);
        if (found == model.held.end()) {
          ASSERT_EQ(record.state, SlotState::kFree);
          continue;
        }
        const Held& held = found->second;
        ASSERT_EQ(record.state, held.sealed ? SlotState::kSealed : SlotState::kLeased);
        ASSERT_EQ(record.version, held.version);
        ASSERT_EQ(record.image_bytes, held.image_bytes);
        // Each lease stamped all memory of its slot: an overlap would show as another lease's
        // stamp.
        for (size_t at : {size_t{0}, held.memory.size() / 2, held.memory.size() - 1,
                          static_cast<size_t>(random_.Below(held.memory.size()))}) {
          ASSERT_EQ(held.memory[at], held.stamp) << "rank " << rank << " slot " << i;
        }
        live.push_back(held.memory);
      }
    }
    for (size_t a = 0; a < live.size(); ++a) {
      for (size_t b = a + 1; b < live.size(); ++b) {
        bool apart = live[a].data() + live[a].size() <= live[b].data() ||
                     live[b].data() + live[b].size() <= live[a].data();
        ASSERT_TRUE(apart) << "two live leases overlap";
      }
    }
    ArenaUsage usage = arena_.usage();
    ASSERT_EQ(usage.reserved_bytes, reserved);
    ASSERT_LE(usage.reserved_bytes, budget_bytes_);
    ASSERT_EQ(usage.segments, segments_.size());
  }

  int sealed_count() const { return sealed_count_; }
  int refused_count() const { return refused_count_; }

 private:
  ModelSegment* Any() {
    if (segments_.empty()) return nullptr;
    auto at = segments_.begin();
    std::advance(at, random_.Below(segments_.size()));
    return &at->second;
  }
  /// Returns a random slot of a random segment that is sealed or leased, as `sealed` requests.
  std::pair<ModelSegment*, uint32_t> AnyHeld(bool sealed) {
    ModelSegment* model = Any();
    if (model == nullptr) return {nullptr, 0};
    std::vector<uint32_t> slots;
    for (auto& [slot, held] : model->held) {
      if (held.sealed == sealed) slots.push_back(slot);
    }
    if (slots.empty()) return {nullptr, 0};
    return {model, slots[random_.Below(slots.size())]};
  }

  void Reserve() {
    auto rank = static_cast<uint32_t>(random_.Below(6));
    auto slots = static_cast<uint32_t>(1 + random_.Below(4));
    uint64_t slot_bytes = random_.OneIn(3) ? 2 * kSlot : 1 + random_.Below(kSlot);
    uint64_t rounded = RoundUp(slot_bytes, kSlotAlign);
    auto known = segments_.find(rank);
    uint64_t before = arena_.usage().reserved_bytes;
    // These are read before the call: a smaller segment no longer exists after its replacement.
    Segment* old = known != segments_.end() ? known->second.segment : nullptr;
    bool suffices = old != nullptr && old->slot_count() >= slots && old->slot_bytes() >= rounded;
    auto result = arena_.Reserve({.job = "job", .rank = Rank{rank}, .uid = 0}, slots, slot_bytes);
    if (old != nullptr) {
      if (suffices) {
        ASSERT_TRUE(result);
        ASSERT_EQ(*result, old);
        return;
      }
      if (!known->second.held.empty()) {
        ASSERT_EQ(result.error().code(), ErrorCode::kFailedPrecondition);
        return;
      }
      // The smaller one is released before the budget is checked.
      segments_.erase(known);
      before = 0;
      for (auto& [each, model] : segments_) before += model.segment->memory().size();
    }
    bool fits = kControlBytes + slots * rounded <= budget_bytes_ - before;
    ASSERT_EQ(result.has_value(), fits);
    if (fits) segments_[rank].segment = *result;
    if (!fits) {
      ++refused_count_;
      ASSERT_EQ(result.error().code(), ErrorCode::kResourceExhausted);
    }
  }

  void Release() {
    ModelSegment* model = Any();
    if (model == nullptr || !model->held.empty()) return;
    uint32_t rank = model->segment->owner().rank.value;
    ASSERT_TRUE(arena_.Release(model->segment).ok());
    segments_.erase(rank);
    ASSERT_EQ(arena_.Find("job", Rank{rank}), nullptr);
  }

  void Lease() {
    ModelSegment* model = Any();
    if (model == nullptr) return;
    Segment& segment = *model->segment;
    VersionId version = Version(1, ++step_);
    uint64_t image_bytes = 1 + random_.Below(segment.slot_bytes());
    auto slot = segment.Lease(version, 4, image_bytes);
    bool full = model->held.size() == segment.slot_count();
    ASSERT_EQ(slot.has_value(), !full);
    if (full) {
      ASSERT_EQ(slot.error().code(), ErrorCode::kResourceExhausted);
      return;
    }
    ASSERT_EQ(model->held.count(*slot), 0U) << "a live slot was leased again";
    Held held{.version = version,
              .image_bytes = image_bytes,
              .stamp = static_cast<std::byte>(step_),
              .memory = segment.slot(*slot)};
    ASSERT_EQ(segment.progress(*slot).copied.load(), 0U);
    segment.progress(*slot).copied = image_bytes;
    std::memset(held.memory.data(), static_cast<int>(held.stamp), held.memory.size());
    model->held[*slot] = held;
  }

  void Seal() {
    auto [model, slot] = AnyHeld(false);
    if (model == nullptr) return;
    Held& held = model->held[slot];
    auto image = held.memory.first(held.image_bytes);
    ShardSeal seal = SealOf(image, model->segment->owner(), held.version, 4);
    ASSERT_TRUE(model->segment->Seal(slot, seal).ok());
    held.sealed = true;
    ++sealed_count_;
    ASSERT_EQ(*model->segment->seal(slot), seal);
  }

  void Abandon() {
    auto [model, slot] = AnyHeld(random_.OneIn(4));
    if (model == nullptr) return;
    bool sealed = model->held[slot].sealed;
    Status status = model->segment->Abandon(slot);
    ASSERT_EQ(status.code(), sealed ? ErrorCode::kFailedPrecondition : ErrorCode::kOk);
    if (!sealed) model->held.erase(slot);
  }

  void Free() {
    auto [model, slot] = AnyHeld(!random_.OneIn(4));
    if (model == nullptr) return;
    bool sealed = model->held[slot].sealed;
    Status status = model->segment->Free(slot);
    ASSERT_EQ(status.code(), sealed ? ErrorCode::kOk : ErrorCode::kFailedPrecondition);
    if (sealed) model->held.erase(slot);
  }

  Arena& arena_;
  const uint64_t budget_bytes_;
  Random random_;
  uint64_t step_ = 0;
  int sealed_count_ = 0;
  int refused_count_ = 0;
  std::map<uint32_t, ModelSegment> segments_;
};

TEST(SlotsPropertyTest, RandomSequencesMatchTheModelAndNeverOverlap) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    RunDir run_dir;
    constexpr uint64_t kBudget = 40 * kMiB;
    auto arena = run_dir.Open(kBudget);
    Model model(*arena, kBudget, seed);
    for (int step = 0; step < 500; ++step) {
      SCOPED_TRACE(step);
      model.Step();
      if (::testing::Test::HasFatalFailure()) return;
      model.Check();
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GT(model.sealed_count(), 20);
    EXPECT_GT(model.refused_count(), 0);
  }
}

// With this sequence, the ring allocator of another checkpoint engine handed out a region that was
// still in use: in a pool of 10, take 4, take 4, free the first, take 4, take 2.
TEST(SlotsPropertyTest, FreedSpaceBetweenLiveSegmentsIsNotLeasedTwice) {
  RunDir run_dir;
  // Ten slots, and a control block for each of the three segments that can live at once.
  constexpr uint64_t kBudget = 10 * kSlot + 3 * kControlBytes;
  auto arena = run_dir.Open(kBudget);
  auto take = [&](uint32_t rank, uint32_t slots) {
    auto segment = arena->Reserve({.job = "job", .rank = Rank{rank}, .uid = 0}, slots, kSlot);
    EXPECT_TRUE(segment) << segment.error().ToString();
    for (uint32_t i = 0; i < slots; ++i) {
      auto slot = (*segment)->Lease(Version(1, i), 1, kSlot);
      EXPECT_TRUE(slot);
      auto memory = (*segment)->slot(*slot);
      std::memset(memory.data(), static_cast<int>(rank * 16 + i), memory.size());
    }
    return *segment;
  };
  Segment* a = take(1, 4);
  Segment* b = take(2, 4);
  ASSERT_TRUE(arena->Release(a).ok());
  Segment* c = take(3, 4);
  Segment* d = take(4, 2);
  auto one_more = arena->Reserve({.job = "job", .rank = Rank{5}, .uid = 0}, 1, kSlot);
  ASSERT_FALSE(one_more);
  EXPECT_EQ(one_more.error().code(), ErrorCode::kResourceExhausted);
  for (Segment* segment : {b, c, d}) {
    for (uint32_t i = 0; i < segment->slot_count(); ++i) {
      auto stamp = static_cast<std::byte>(segment->owner().rank.value * 16 + i);
      for (std::byte each : segment->slot(i)) ASSERT_EQ(each, stamp);
    }
  }
  // The same within one segment: free in the middle, lease again; all four are live and distinct.
  ASSERT_TRUE(b->Abandon(1).ok());
  EXPECT_EQ(*b->Lease(Version(1, 9), 1, kSlot), 1U);
  EXPECT_FALSE(b->Lease(Version(1, 10), 1, kSlot));
}

TEST(SlotsPropertyTest, ManyThreadsNeverShareASlot) {
  RunDir run_dir;
  auto arena = run_dir.Open(64 * kMiB);
  constexpr int kThreads = 4;
  constexpr int kRanks = 2;
  std::vector<Segment*> segments;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    segments.push_back(
        *arena->Reserve({.job = "job", .rank = Rank{rank}, .uid = 0}, 3, kSlotAlign));
  }
  std::atomic<uint64_t> next_step{1};
  std::atomic<int> collisions{0};
  std::atomic<int> saves{0};
  // Records which thread has a slot, independently of the arena: taking a taken slot is a
  // collision.
  std::atomic<int> users[kRanks][3] = {};
  std::vector<std::thread> threads;
  for (int t = 1; t <= kThreads; ++t) {
    threads.emplace_back([&, t] {
      Random random(static_cast<uint64_t>(t));
      for (int round = 0; round < 300; ++round) {
        uint64_t rank = random.Below(kRanks);
        Segment& segment = *segments[rank];
        VersionId version = Version(1, next_step++);
        constexpr uint64_t kBytes = 5000;
        auto slot = segment.Lease(version, 2, kBytes);
        if (!slot) continue;
        int no_user = 0;
        if (!users[rank][*slot].compare_exchange_strong(no_user, t)) ++collisions;
        auto image = segment.slot(*slot).first(kBytes);
        FillImage(image, version, segment.owner().rank);
        if (random.OneIn(3)) {
          users[rank][*slot] = 0;
          if (!segment.Abandon(*slot).ok()) ++collisions;
          continue;
        }
        if (!segment.Seal(*slot, SealOf(image, segment.owner(), version, 2)).ok()) ++collisions;
        if (segment.record(*slot).version != version) ++collisions;
        if (!HoldsImage(image, version, segment.owner().rank)) ++collisions;
        ++saves;
        users[rank][*slot] = 0;
        if (!segment.Free(*slot).ok()) ++collisions;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(collisions, 0);
  EXPECT_GT(saves, 100);
}

TEST(SlotsPropertyTest, ThreadsReserveAndReleaseWithinTheBudget) {
  RunDir run_dir;
  constexpr uint64_t kBudget = 12 * kMiB;  // two segments of 2 slots, not three
  auto arena = run_dir.Open(kBudget);
  std::atomic<int> errors{0};
  std::atomic<int> reserved{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 40; ++round) {
        SegmentOwner owner{.job = "job", .rank = Rank{t}, .uid = 0};
        auto segment = arena->Reserve(owner, 2, kSlotAlign);
        if (arena->usage().reserved_bytes > kBudget) ++errors;
        if (!segment) {
          if (segment.error().code() != ErrorCode::kResourceExhausted) ++errors;
          continue;
        }
        ++reserved;
        if (arena->Find("job", Rank{t}) != *segment) ++errors;
        if (!SaveImage(**segment, Version(1, 1), 100)) ++errors;
        if (!arena->EnsureKeeper().ok()) ++errors;
        if (!arena->Release(*segment).ok()) ++errors;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(errors, 0);
  EXPECT_GT(reserved, 10);
  EXPECT_EQ(arena->usage().reserved_bytes, 0U);
  EXPECT_EQ(KeeperClient::Connect(run_dir.path(), Clock::Real())->Usage()->entries, 0U);
}

}  // namespace
}  // namespace holdfast::agent
