#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "agent/api/messages.h"
#include "agent/api/segment_layout.h"
#include "base/status.h"

namespace holdfast::client {

/// This rank's segment, mapped into the trainer. A forked child does not inherit the mapping.
/// Movable; unmaps when destroyed.
class SegmentMapping {
 public:
  SegmentMapping() = default;
  SegmentMapping(SegmentMapping&& other) noexcept { *this = std::move(other); }
  SegmentMapping& operator=(SegmentMapping&& other) noexcept;
  ~SegmentMapping();

  /// Maps `fd` as `welcome` describes it. First checks every number against the descriptor's real
  /// size, that the memory is sealed against shrinking (so that accesses cannot fault), and that
  /// slots of `slot_bytes` fit. The caller keeps `fd`.
  static Result<SegmentMapping> Map(int fd, const agent::WelcomeMessage& welcome,
                                    uint64_t slot_bytes);
  /// Returns whether `fd` refers to the mapped memory.
  bool IsSame(int fd) const;

  /// Populates the pages of the part that begins at `from`, so that the first writes to it have no
  /// page faults (one every 4 KiB). `from` is 0 or an earlier result. Returns where the next part
  /// begins: bytes() when nothing is left, or when an older kernel does not support this.
  uint64_t Populate(uint64_t from) const;

  bool valid() const { return base_ != nullptr; }
  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  uint32_t slots() const { return slots_; }
  std::span<std::byte> slot(uint32_t index) const {
    return {base_ + control_bytes_ + index * slot_bytes_, slot_bytes_};
  }
  agent::SlotProgress& progress(uint32_t index) const {
    return reinterpret_cast<agent::SegmentControl*>(base_)->slots[index];
  }

 private:
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t control_bytes_ = 0;
  uint64_t slot_bytes_ = 0;
  uint32_t slots_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace holdfast::client
