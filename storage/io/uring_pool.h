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

#include "base/mutex.h"
#include "base/status.h"

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

  /// A registered buffer, and its bytes from an address to its end.
  struct Fixed {
    uint16_t index = 0;
    uint64_t bytes = 0;
  };
  /// Returns the registered buffer that contains `address`, if any.
  std::optional<Fixed> Find(const std::byte* address) const;

  /// Pins `buffers`, which are sorted by address and do not overlap. Nothing may be registered yet.
  Status Register(const std::vector<iovec>& buffers, uint64_t generation);
  /// Shares the registered buffers of `source` without pinning them again. Fails before Linux 6.12.
  Status CloneFrom(UringRing& source);
  void Unregister();
  /// Returns the generation of the registered memory.
  uint64_t generation() const { return generation_; }

 private:
  io_uring ring_ = {};
  bool open_ = false;
  std::vector<iovec> buffers_;
  uint64_t generation_ = 0;
};

/// The rings of one directory. A ring with registered buffers is expensive to set up, so files
/// borrow one while operations are in flight. Memory is pinned once, in a ring that serves only
/// this purpose, and cloned into the others where the kernel supports it. Thread-safe.
class UringPool {
 public:
  /// `name` (the directory) is for messages.
  UringPool(std::string name, uint32_t entries) : name_(std::move(name)), entries_(entries) {}

  /// Returns a ring in which the current set of memory is registered, or no memory if registering
  /// failed.
  Result<std::unique_ptr<UringRing>> Borrow();
  /// Takes a ring back. No operation may be in flight in it.
  void Return(std::unique_ptr<UringRing> ring);

  void RegisterMemory(std::span<std::byte> memory);
  void UnregisterMemory(std::span<std::byte> memory);

  /// Returns a number that changes with the set of memory. A borrower with a ring of an older
  /// generation must use plain buffers, since its addresses may refer to other memory now.
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
  bool can_register_ HOLDFAST_GUARDED_BY(mutex_) = true;  // the current set
};

}  // namespace holdfast
