#pragma once

#include <array>
#include <vector>

#include "coordinator/detect/gather.h"
#include "coordinator/detect/records.h"

// By how much members were behind the others in the operations of one window. Where computing goes
// on beside operations, a member that is late once is late in all operations until the members meet
// for good: its lead is carried from one to the next and counts once. So it does in operations that
// follow each other without a gap for the usual member, which had nothing to compute between them.

namespace holdfast::detect {

class Leads {
 public:
  explicit Leads(uint32_t members)
      : members_(members),
        stops_(members),
        sums_(members),
        largest_(members),
        in_row_(members),
        rows_(members) {}

  void Add(const Gathered& operation);
  /// A window begins.
  void Begin();
  /// How much later than the usual member it came to all operations together, in ns.
  double sum(uint32_t position) const { return sums_[position]; }
  /// How much later than the usual member it came to the operation where that was most, in ns.
  double largest(uint32_t position) const { return largest_[position]; }
  /// The sum of such leads over the rows of operations without a gap, the largest of each row.
  double of_rows(uint32_t position) const { return rows_[position] + in_row_[position]; }
  /// What share of a lead is there again in the next operation of the kind, 0 … 1.
  double carried() const;

 private:
  /// Operations of one kind. Where several kinds take turns on one stream, those of one follow each
  /// other without a wait, and the lead shows in the other.
  struct Kind {
    std::vector<double> waits;  // in the operation before; negative: not known
    std::vector<double> usual;  // by member, slowly following
  };

  const uint32_t members_;
  bool FollowsAtOnce(const Gathered& operation, uint64_t least_ns);

  std::array<Kind, kFuncMax + 1> kinds_;
  std::vector<uint64_t> stops_;  // by member, of the operation before, of any kind; 0: not known
  std::vector<double> sums_;     // by member, in this window
  std::vector<double> largest_;  // by member, in this window
  std::vector<double> in_row_;   // by member, the largest of the row that goes on
  std::vector<double> rows_;     // by member, of the rows of this window that are over
  std::vector<double> scratch_;
  uint64_t operations_ = 0;
  double typical_ = 0;   // deviation of a wait from what is usual: half of them are larger
  double together_ = 0;  // of a wait and the one before it, beside what is usual
  double alone_ = 0;     // of the one before
};

}  // namespace holdfast::detect
