#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/detect/detector.h"
#include "testing/sim/scenario.h"

// Runs the detector on one simulated job and compares its verdicts with the ground truth.

namespace holdfast::sim {

struct RunLimits {
  uint32_t iterations_after = 60;  // after a fault; in total if there is none
  double seconds_after = 90;       // after a hang; the patience is at least a minute or two steps
  double tick_s = 1;               // between evaluations
  uint32_t ticks_after = 3;        // after the fault is found, to catch false verdicts
};
/// Returns limits that suffice to find the fault and that the job's size allows.
RunLimits LimitsFor(const Scenario& scenario);

struct Outcome {
  bool detected = false;  // the right class
  bool exact = false;     // and exactly the right ranks or connection
  double latency_s = 0;   // from the fault to the verdict
  double latency_iterations = 0;
  /// Classes of the distinct false verdicts.
  std::vector<detect::FaultClass> wrong;
  double job_s = 0;  // simulated time
  detect::DetectorCounters counters;
  std::vector<detect::Verdict> reported;  // each distinct verdict once
};

Outcome RunScenario(const Scenario& scenario, uint64_t seed, const RunLimits& limits);

/// Returns the classes that are right for a fault; the first is the usual one.
std::vector<detect::FaultClass> RightClasses(FaultKind kind);

}  // namespace holdfast::sim
