#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "base/status.h"

// The rules for queued operations of all BlockFile variants.

namespace holdfast {

constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Returns InvalidArgument unless offset, length and memory address are multiples of kBlockBytes
/// and the end is a valid file offset. `path` is for the message.
Status CheckOperation(const std::string& path, uint64_t offset, std::span<const std::byte> bytes);

/// Returns the DataLoss error for a read of `bytes` at `offset` that reached the end of the file at
/// `end`.
Status PastEndError(const std::string& path, uint64_t offset, uint64_t bytes, uint64_t end);

/// Returns the FailedPrecondition error for a caller that waits for the first `bytes` bytes when
/// only `queued` were queued.
Status NeverQueuedError(const std::string& path, uint64_t bytes, uint64_t queued);

/// Computes the completed prefix [0, n) from intervals that complete in any order.
/// Thread-compatible.
class PrefixTracker {
 public:
  void Add(uint64_t offset, uint64_t bytes);
  uint64_t prefix() const { return prefix_; }

 private:
  uint64_t prefix_ = 0;
  std::map<uint64_t, uint64_t> ahead_;  // start → end of the intervals after a gap
};

}  // namespace holdfast
