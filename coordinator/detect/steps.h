#pragma once

#include <vector>

#include "coordinator/detect/gather.h"
#include "coordinator/detect/lateness.h"

// Steps as if they were operations that all ranks meet in: where ranks do not wait for each other,
// the length of a step is the rank's own time.

namespace holdfast::detect {

class Steps {
 public:
  Steps(uint32_t world, const DetectorOptions& options)
      : gatherer_(world), lateness_(world, options), ranks_(world) {}

  void Add(uint32_t rank, const StepTime& step, Clock::TimePoint now);
  /// The oldest step that all have told, or half of them some time ago.
  std::optional<Gathered> Take(Clock::TimePoint before) { return gatherer_.Take(before); }
  Lateness& lateness() { return lateness_; }
  const Lateness& lateness() const { return lateness_; }

 private:
  struct Told {
    uint64_t step = 0;      // the newest
    uint64_t clock_ns = 1;  // sum of the steps so far
  };

  Gatherer gatherer_;
  Lateness lateness_;
  std::vector<Told> ranks_;
};

}  // namespace holdfast::detect
