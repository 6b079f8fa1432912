#include "storage/io/queue_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "storage/io/block_file.h"

namespace holdfast {

Status CheckOperation(const std::string& path, uint64_t offset, std::span<const std::byte> bytes) {
  auto address = reinterpret_cast<uintptr_t>(bytes.data());
  if ((offset | bytes.size() | address) % kBlockBytes != 0) {
    return InvalidArgumentError(
        fmt::format("{}: offset {}, length {} and address {:#x} must be multiples of {}", path,
                    offset, bytes.size(), address, kBlockBytes));
  }
  constexpr uint64_t kFileBytesMax = std::numeric_limits<int64_t>::max();
  if (offset > kFileBytesMax || bytes.size() > kFileBytesMax - offset) {
    return InvalidArgumentError(fmt::format(
        "{}: offset {} and length {} exceed the largest file offset", path, offset, bytes.size()));
  }
  return Status::Ok();
}

Status PastEndError(const std::string& path, uint64_t offset, uint64_t bytes, uint64_t end) {
  return DataLossError(fmt::format("{}: a read of {} bytes at offset {} is past the end at {}",
                                   path, bytes, offset, end));
}

Status NeverQueuedError(const std::string& path, uint64_t bytes, uint64_t queued) {
  return FailedPreconditionError(
      fmt::format("{}: a wait for the first {} bytes, but only {} were queued without a gap", path,
                  bytes, queued));
}

void PrefixTracker::Add(uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;
  uint64_t end = offset + bytes;
  if (offset > prefix_) {
    uint64_t& known = ahead_[offset];
    known = std::max(known, end);
    return;
  }
  prefix_ = std::max(prefix_, end);
  while (!ahead_.empty() && ahead_.begin()->first <= prefix_) {
    prefix_ = std::max(prefix_, ahead_.begin()->second);
    ahead_.erase(ahead_.begin());
  }
}

}  // namespace holdfast
