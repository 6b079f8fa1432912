#pragma once

#include <vector>

#include "coordinator/detect/gather.h"
#include "coordinator/detect/lateness.h"

// Treats steps as operations in which all ranks meet. If ranks do not wait for each other, the
// length of a step is the rank's own time.

namespace holdfast::detect {

class Steps {
 public:
  Steps(uint32_t world, const DetectorOptions& options)
      : gatherer_(world), lateness_(world, options, world <= Lateness::kSmallJob), ranks_(world) {}

  void Add(uint32_t rank, const StepTime& step, Clock::TimePoint now);
  /// Returns the oldest step once all ranks have reported it, or once half of them have and it was
  /// first reported long ago. Ranks that do not wait for each other drift apart: a slow one may
  /// report the step much later than the others.
  std::optional<GatheredOperation> Take(Clock::TimePoint now) {
    return gatherer_.Take(now - kTimeout);
  }
  Lateness& lateness() { return lateness_; }
  const Lateness& lateness() const { return lateness_; }

 private:
  static constexpr Clock::Duration kTimeout = std::chrono::minutes(2);
  struct RankSteps {
    uint64_t newest = 0;    // the newest step reported
    uint64_t clock_ns = 1;  // sum of the steps so far
  };

  Gatherer gatherer_;
  Lateness lateness_;
  std::vector<RankSteps> ranks_;
};

}  // namespace holdfast::detect
