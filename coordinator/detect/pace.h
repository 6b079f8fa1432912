#pragma once

#include <cstdint>
#include <optional>

#include "coordinator/detect/robust.h"

// The time of an iteration, and since when it is longer than it was.

namespace holdfast::detect {

/// A one-sided CUSUM over the durations of steps, against the median of those before.
class Pace {
 public:
  /// A step counts once, with the median of what the first few ranks say of it.
  void Add(uint64_t step, uint64_t duration_ns);
  /// The usual time of an iteration now; 0 when not known.
  double iteration_ns() const { return iteration_ns_; }

  struct Shift {
    uint64_t step = 0;  // about when
    double before_ns = 0;
    double after_ns = 0;
  };
  /// A lasting slowdown of at least 5 %.
  std::optional<Shift> shift() const;

 private:
  struct Pending {
    uint64_t step = 0;
    Recent<double, 5> durations;
  };
  void Finish(const Pending& pending);

  std::vector<Pending> pending_;  // steps that are still being told, oldest first
  Recent<double, 32> usual_;      // before a shift
  Recent<double, 8> now_;
  Centre centre_;
  double sum_ = 0;
  uint64_t sum_since_ = 0;    // step
  uint64_t finished_ = 0;     // newest finished step
  uint32_t implausible_ = 0;  // in a row
  double iteration_ns_ = 0;
};

}  // namespace holdfast::detect
