#pragma once

#include <array>
#include <cstdint>

#include "coordinator/detect/gather.h"

// How many operations of one kind a communicator completes in one iteration of the program. The
// pauses between operations repeat from iteration to iteration: a long one before the first
// operation of the backward pass, short ones between its buckets. The period is the number of
// operations after which the pauses are most alike.

namespace holdfast::detect {

class Period {
 public:
  /// Adds an operation. `iteration_ns`: the usual duration of an iteration, 0 if unknown.
  void Add(const GatheredOperation& operation, double iteration_ns);
  /// The operations in one iteration. 0: unknown. If all pauses are alike, any number of operations
  /// has the same work, and the result only has about the length of an iteration.
  uint32_t operations() const { return operations_; }
  /// The usual duration of operations(); 0 if unknown.
  double duration_ns() const { return duration_ns_; }

 private:
  static constexpr uint32_t kCapacity = 256;
  struct Entry {
    double at_ns = 0;     // the sum of the pauses so far
    float logarithm = 0;  // of the pause before the operation
    bool known = false;   // whether the previous operation was reported, too
  };
  const Entry& Last(uint32_t back) const { return entries_[(added_ - 1 - back) % kCapacity]; }
  double DurationOf(uint32_t operations, uint32_t size) const;
  double DifferenceAfter(uint32_t operations, uint32_t size) const;
  void Update(double iteration_ns);

  std::array<Entry, kCapacity> entries_{};
  uint64_t added_ = 0;
  uint64_t update_at_ = 8;  // operations
  uint64_t next_ = 0;       // the sequence number after the last operation
  /// Ends of the last operation, of a few members, each on its own clock.
  std::array<uint64_t, 9> ends_ns_{};
  uint32_t operations_ = 0;
  double duration_ns_ = 0;
};

}  // namespace holdfast::detect
