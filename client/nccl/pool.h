#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <utility>

namespace holdfast::nccl {

/// Handles are numbers, not addresses: stale, duplicate and invalid handles are recognised and
/// never dereferenced. A handle has a kind, a channel, the entry's index and the entry's
/// generation.
enum class HandleKind : uint64_t {
  kNone = 0,
  kContext = 1,
  kOperation = 2,
  kKernelChannel = 3,  // of the operation that index and generation name
  kProxyOperation = 4,
  kProxyStep = 5,
};

struct Handle {
  HandleKind kind = HandleKind::kNone;
  uint8_t channel = 0;
  uint32_t index = 0;
  uint64_t generation = 0;

  static constexpr uint64_t kGenerations = (1ULL << 37) - 1;

  void* ToPointer() const {
    return reinterpret_cast<void*>(static_cast<uint64_t>(kind) << 61 | uint64_t{channel} << 53 |
                                   uint64_t{index} << 37 | generation);
  }
  static Handle From(const void* pointer) {
    const auto word = reinterpret_cast<uint64_t>(pointer);
    return {.kind = static_cast<HandleKind>(word >> 61),
            .channel = static_cast<uint8_t>(word >> 53),
            .index = static_cast<uint32_t>(word >> 37 & 0xFFFF),
            .generation = word & kGenerations};
  }
};

/// A fixed number of reference-counted entries. The thread that releases the last reference
/// finishes the entry. Takes no lock and allocates no memory. Any thread may call.
///
/// Entry has `void Finish()`, called once while no other thread can access the entry, and
/// `void Reset()`, which prepares a used entry for its next use.
template <typename Entry, uint32_t kEntries>
class Pool {
  static_assert(kEntries % 64 == 0 && kEntries <= 1U << 16);

 public:
  /// A reference, released by the destructor unless it is kept.
  class Ref {
   public:
    Ref() = default;
    Ref(Pool* pool, uint32_t index) : pool_(pool), index_(index) {}
    Ref(Ref&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), index_(other.index_) {}
    Ref& operator=(Ref&&) = delete;
    ~Ref() {
      if (pool_ != nullptr) pool_->Release(index_);
    }
    explicit operator bool() const { return pool_ != nullptr; }
    Entry* operator->() const { return &pool_->slots_[index_].entry; }
    /// Keeps the reference. Release(handle) releases it later.
    void Keep() { pool_ = nullptr; }

   private:
    Pool* pool_ = nullptr;
    uint32_t index_ = 0;
  };

  /// Takes a free entry with `references` kept references, calls `fill` before any thread can find
  /// the entry, and returns its handle. The handle is of kind kNone when all entries are in use.
  template <typename Fill>
  Handle Take(HandleKind kind, uint32_t references, Fill fill) {
    const uint32_t index = TakeIndex();
    if (index == kEntries) return {};
    Slot& slot = slots_[index];
    slot.entry.Reset();
    const uint64_t generation = slot.life.load(std::memory_order_relaxed) >> kRefBits;
    const Handle handle{.kind = kind, .index = index, .generation = generation};
    fill(slot.entry, handle);
    slot.life.store(generation << kRefBits | references, std::memory_order_release);
    return handle;
  }

  /// Returns the entry that `handle` names, while it is in use.
  Ref Find(const Handle& handle) {
    if (handle.index >= kEntries) return {};
    std::atomic<uint64_t>& life = slots_[handle.index].life;
    uint64_t now = life.load(std::memory_order_acquire);
    while (now >> kRefBits == handle.generation && (now & kRefs) != 0 && (now & kRefs) != kRefs) {
      if (life.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) {
        return Ref(this, handle.index);
      }
    }
    return {};
  }

  /// Releases a kept reference.
  void Release(const Handle& handle) { Release(handle.index); }

  /// Calls `visit(handle, entry)` for each entry in use.
  template <typename Visit>
  void ForEach(HandleKind kind, Visit visit) {
    for (uint32_t index = 0; index < kEntries; ++index) {
      const uint64_t life = slots_[index].life.load(std::memory_order_acquire);
      if ((life & kRefs) == 0) continue;
      const Handle handle{.kind = kind, .index = index, .generation = life >> kRefBits};
      if (Ref ref = Find(handle)) visit(handle, *ref.operator->());
    }
  }

 private:
  static constexpr uint32_t kRefBits = 16;
  static constexpr uint64_t kRefs = (1U << kRefBits) - 1;
  struct Slot {
    std::atomic<uint64_t> life{0};  // generation, references
    Entry entry;
  };

  uint32_t TakeIndex() {
    for (uint32_t word = 0; word < used_.size(); ++word) {
      uint64_t bits = used_[word].load(std::memory_order_relaxed);
      while (bits != ~uint64_t{0}) {
        const auto bit = static_cast<uint32_t>(std::countr_one(bits));
        if (used_[word].compare_exchange_weak(bits, bits | 1ULL << bit,
                                              std::memory_order_acquire)) {
          return word * 64 + bit;
        }
      }
    }
    return kEntries;
  }

  void Release(uint32_t index) {
    Slot& slot = slots_[index];
    const uint64_t before = slot.life.fetch_sub(1, std::memory_order_acq_rel);
    if ((before & kRefs) != 1) return;
    slot.entry.Finish();
    const uint64_t next = ((before >> kRefBits) + 1) & Handle::kGenerations;
    slot.life.store(next << kRefBits, std::memory_order_release);
    used_[index / 64].fetch_and(~(1ULL << index % 64), std::memory_order_release);
  }

  std::array<Slot, kEntries> slots_;
  std::array<std::atomic<uint64_t>, kEntries / 64> used_ = {};
};

}  // namespace holdfast::nccl
