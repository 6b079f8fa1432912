#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "coordinator/detect/gather.h"
#include "coordinator/detect/records.h"

// How far members lag behind the others in the operations of one window. If computing overlaps
// operations, a member that is late once is late in every operation until the members synchronize:
// its lag carries over from one operation to the next and counts once. The lag also counts once in
// back-to-back operations, between which the usual member has nothing to compute.

namespace holdfast::detect {

class LagTracker {
 public:
  explicit LagTracker(uint32_t members)
      : members_(members),
        stops_(members),
        sums_(members),
        largest_(members),
        least_(members),
        in_row_(members),
        rows_(members),
        seen_(members) {}

  void Add(const GatheredOperation& operation);
  /// Begins a window.
  void Begin();
  /// Counts the operations before `operation`, which ends the window, that were not reported.
  void End(const GatheredOperation& operation) { CountUpTo(operation, 0); }
  /// The share of the window's operations that the member and at least half of the others have
  /// reported. 1 if the window has no operation.
  double seen(uint32_t position) const {
    return operations_in_window_ == 0
               ? 1
               : static_cast<double>(seen_[position]) / static_cast<double>(operations_in_window_);
  }
  /// The sum of the member's lags behind the usual member in all operations of the window, in ns.
  /// Operations that were not reported count like the others.
  double sum(uint32_t position) const {
    return sums_[position] / std::max(seen(position), kSeenMin);
  }
  /// The member's largest lag in one operation of the window, in ns.
  double largest(uint32_t position) const { return largest_[position]; }
  /// The member's least lag in one operation of the window, in ns: 0 or negative, how far it was
  /// ahead of the usual member.
  double least(uint32_t position) const { return least_[position]; }
  /// The sum over the rows of back-to-back operations of the largest lag in each row, in ns.
  double of_rows(uint32_t position) const { return rows_[position] + in_row_[position]; }
  /// The share of a lag that is present again in the next operation of the kind, 0 … 1.
  double carried() const;
  /// With a smaller share of reported operations, lags are not known.
  static constexpr double kSeenMin = 0.75;

 private:
  /// Operations of one kind. If several kinds alternate on one stream, the operations of one kind
  /// follow each other without a wait, and the lag shows in the other kind.
  struct Kind {
    std::vector<double> waits;  // in the previous operation; negative: unknown
    std::vector<double> usual;  // by member, a slow moving average
    uint64_t next = 0;          // sequence number after the last operation
    uint32_t in_window = 0;     // operations of this window
  };

  const uint32_t members_;
  bool IsBackToBack(const GatheredOperation& operation, uint64_t transfer_ns);
  void CountUpTo(const GatheredOperation& operation, uint64_t including);

  std::array<Kind, kCollectiveKinds> kinds_;
  std::vector<uint64_t> stops_;  // by member, of the previous operation of any kind; 0: unknown
  std::vector<double> sums_;     // by member, in this window
  std::vector<double> largest_;  // by member, in this window
  std::vector<double> least_;    // by member, in this window
  std::vector<double> in_row_;   // by member, the largest lag of the current row
  std::vector<double> rows_;     // by member, of the finished rows of this window
  std::vector<uint64_t> seen_;   // by member, operations of this window that were reported
  uint64_t operations_in_window_ = 0;
  std::vector<double> scratch_;
  uint64_t operations_ = 0;
  double typical_ = 0;  // median absolute deviation of a wait from the member's usual wait
  double product_ = 0;  // of the deviations of consecutive waits: how far a lag carries over
  double square_ = 0;   // of the deviation of the earlier of them
};

}  // namespace holdfast::detect
