#pragma once

#include <cstdint>
#include <optional>

#include "coordinator/detect/robust.h"

// The duration of an iteration, and the step since which it has been longer.

namespace holdfast::detect {

/// A one-sided CUSUM over the durations of steps, against the median of earlier steps.
class Pace {
 public:
  /// Adds one rank's duration of a step. A step counts once, with the median of the first few
  /// ranks' durations.
  void Add(uint64_t step, uint64_t duration_ns);
  /// Returns the current usual duration of an iteration; 0 if unknown.
  double iteration_ns() const { return iteration_ns_; }

  struct Shift {
    uint64_t step = 0;  // the approximate start
    double before_ns = 0;
    double after_ns = 0;
  };
  /// Returns a lasting slowdown of at least 5 %, if there is one.
  std::optional<Shift> shift() const;

 private:
  struct Pending {
    uint64_t step = 0;
    Recent<double, 5> durations;
  };
  void Finish(const Pending& pending);

  std::vector<Pending> pending_;  // steps whose durations are still arriving, oldest first
  Recent<double, 32> usual_;      // before a shift
  Recent<double, 8> now_;
  Centre centre_;
  double sum_ = 0;
  uint64_t sum_since_ = 0;    // step
  uint64_t finished_ = 0;     // newest finished step
  uint32_t implausible_ = 0;  // consecutive implausible steps
  double iteration_ns_ = 0;
};

}  // namespace holdfast::detect
