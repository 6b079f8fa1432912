#pragma once

#include <vector>

#include "coordinator/detect/gather.h"

// By how much members were behind the others in the operations of one window. Where computing goes
// on beside operations, a member that is late once is late in all operations until the members meet
// for good: its lead is carried from one to the next and counts once.

namespace holdfast::detect {

class Leads {
 public:
  explicit Leads(uint32_t members) : waits_(members), usual_(members), largest_(members) {}

  void Add(const Gathered& operation);
  /// A window begins.
  void Begin();
  /// How much later than the usual member it came to the operation where that was most, in ns.
  double largest(uint32_t position) const { return largest_[position]; }
  /// What share of a lead is there again in the next operation, 0 … 1.
  double carried() const;

 private:
  std::vector<double> waits_;    // in the operation before; negative: not known
  std::vector<double> usual_;    // by member, slowly following
  std::vector<double> largest_;  // in this window
  std::vector<double> scratch_;
  bool first_ = true;  // of the window
  uint64_t operations_ = 0;
  double together_ = 0;  // of a wait and the one before it, beside what is usual
  double alone_ = 0;     // of the one before
};

}  // namespace holdfast::detect
