#pragma once

#include <liburing.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/base/mutex.h"
#include "storage/base/status.h"

namespace holdfast {

/// An io_uring and the memory registered with it. Thread-compatible: one borrower at a time.
class UringRing {
 public:
  static Result<std::unique_ptr<UringRing>> Create(uint32_t entries);
  UringRing() = default;  // empty: use Create
  ~UringRing();
  UringRing(const UringRing&) = delete;
  UringRing& operator=(const UringRing&) = delete;

  io_uring& ring() { return ring_; }

  /// A registered buffer and how far it reaches.
  struct Fixed {
    uint16_t index = 0;
    uint64_t bytes = 0;
  };
  /// The registered buffer that `address` lies in, if any.
  std::optional<Fixed> Find(const std::byte* address) const;

  /// Pins `buffers`, which are sorted by address and do not overlap. Nothing may be registered yet.
  Status Register(const std::vector<iovec>& buffers, uint64_t generation);
  /// Shares what `source` has registered, without pinning again. Unsupported before Linux 6.12.
  Status CloneFrom(UringRing& source);
  void Unregister();
  /// Of the set of memory that is registered.
  uint64_t generation() const { return generation_; }

 private:
  io_uring ring_ = {};
  bool open_ = false;
  std::vector<iovec> buffers_;
  uint64_t generation_ = 0;
};

/// The rings of one directory. A ring with registered buffers is dear to set up, so files borrow
/// one while operations are under way. Memory is pinned once, in a ring kept for that, and cloned
/// into the others where the kernel can. Thread-safe.
class UringPool {
 public:
  /// `name` (the directory) is for messages.
  UringPool(std::string name, uint32_t entries) : name_(std::move(name)), entries_(entries) {}

  /// A ring in which the present set of memory is registered, or none of it where that failed.
  Result<std::unique_ptr<UringRing>> Borrow();
  /// Nothing may be under way in it.
  void Return(std::unique_ptr<UringRing> ring);

  void RegisterMemory(std::span<std::byte> memory);
  void UnregisterMemory(std::span<std::byte> memory);

  /// Changes with the set of memory: a borrower whose ring is older must use plain buffers, since
  /// an address may mean other memory by now.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  void Warn(const Status& why) const;
  void SetChanged() HOLDFAST_REQUIRES(mutex_);
  void Refresh(UringRing& ring) HOLDFAST_REQUIRES(mutex_);
  std::vector<iovec> Buffers() const HOLDFAST_REQUIRES(mutex_);

  const std::string name_;
  const uint32_t entries_;
  Mutex mutex_;
  std::atomic<uint64_t> generation_{1};
  std::vector<std::span<std::byte>> regions_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<UringRing>> idle_ HOLDFAST_GUARDED_BY(mutex_);
  std::unique_ptr<UringRing> pinned_ HOLDFAST_GUARDED_BY(mutex_);  // does no I/O
  bool can_clone_ HOLDFAST_GUARDED_BY(mutex_) = true;
  bool can_register_ HOLDFAST_GUARDED_BY(mutex_) = true;  // the present set
};

}  // namespace holdfast
