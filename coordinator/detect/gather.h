#pragma once

#include <optional>
#include <vector>

#include "coordinator/detect/table.h"

// Collects the records of the members of a communicator for the same operation.

namespace holdfast::detect {

/// One rank's times in one operation, on the rank's own clock.
struct Sample {
  uint64_t started_ns = 0;
  uint64_t ended_ns = 0;  // 0: no record from the rank
  uint64_t blocked_ns = 0;
  uint64_t moved_bytes = 0;
  bool present() const { return ended_ns != 0; }
  uint64_t duration_ns() const { return ended_ns - started_ns; }
};

struct GatheredOperation {
  CollectiveKind kind = CollectiveKind::kOther;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kUnknown;
  CollectiveProtocol protocol = CollectiveProtocol::kUnknown;
  uint64_t sequence = 0;
  uint64_t bytes = 0;   // the largest of any member
  uint32_t count = 0;   // samples present
  uint32_t passed = 0;  // members without a sample that have reported much later operations
  uint32_t opener = 0;  // position of the member whose record came first
  Clock::TimePoint since;
  std::vector<Sample> samples;  // by position
};

/// The operations of one communicator whose records are still arriving. Their number is bounded:
/// records beyond it are dropped, and no rank opens more than half of the operations.
class Gatherer {
 public:
  explicit Gatherer(uint32_t members);

  /// Adds one rank's times.
  void Add(const CollectiveRecord& record, uint32_t position, Clock::TimePoint now);
  /// Returns the oldest operation once each member has reported it, or has reported much later
  /// operations, since its record was lost. Also returns the operation if at least half of the
  /// members have reported it and it was opened no later than `before`. Keeps the order: a later
  /// operation waits for an earlier one.
  std::optional<GatheredOperation> Take(Clock::TimePoint before);
  bool empty() const { return open_.empty(); }

 private:
  GatheredOperation* Find(const CollectiveRecord& record);
  GatheredOperation* Open(const CollectiveRecord& record, uint32_t position, Clock::TimePoint now);

  /// The highest sequence number of each member; empty before the first record.
  std::vector<uint64_t>& NewestOf(CollectiveKind kind) {
    return newest_[static_cast<size_t>(kind)];
  }

  const uint32_t members_;
  const size_t open_max_;
  std::vector<GatheredOperation> open_;                    // oldest first
  std::array<uint64_t, kCollectiveKinds> closed_below_{};  // by kind: records below are too late
  std::array<std::vector<uint64_t>, kCollectiveKinds> newest_;
};

}  // namespace holdfast::detect
