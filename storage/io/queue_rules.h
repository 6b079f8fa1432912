#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "storage/base/status.h"

// What the queues of all BlockFile variants have in common.

namespace holdfast {

constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// InvalidArgument unless offset, length and memory are multiples of kBlockBytes and the end fits a
/// file. `path` is for the message.
Status CheckOperation(const std::string& path, uint64_t offset, std::span<const std::byte> bytes);

/// DataLoss: a read of `bytes` at `offset` found the file's end at `end`.
Status PastEndError(const std::string& path, uint64_t offset, uint64_t bytes, uint64_t end);

/// FailedPrecondition: a caller waits for byte `bytes` when only `queued` were ever queued.
Status NeverQueuedError(const std::string& path, uint64_t bytes, uint64_t queued);

/// Grows a prefix [0, n) out of intervals that finish in any order. Thread-compatible.
class PrefixTracker {
 public:
  void Add(uint64_t offset, uint64_t bytes);
  uint64_t prefix() const { return prefix_; }

 private:
  uint64_t prefix_ = 0;
  std::map<uint64_t, uint64_t> ahead_;  // start → end of what lies beyond a gap
};

}  // namespace holdfast
