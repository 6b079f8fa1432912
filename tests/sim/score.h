#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/detect/detector.h"
#include "tests/sim/scenario.h"

// Runs the detector over one simulated job and compares what it says with what is true.

namespace holdfast::sim {

struct RunLimits {
  uint32_t iterations_after = 60;  // of a fault; of a job without one: in all
  double seconds_after = 90;       // of a hang: what may be a pause is given a minute, or two steps
  double tick_s = 1;               // between evaluations
  uint32_t ticks_after = 3;        // once everything is found, for what is said wrongly then
};
/// What is enough to find the fault, and what is affordable at the job's size.
RunLimits LimitsFor(const Scenario& scenario);

struct Outcome {
  bool detected = false;  // the right class
  bool exact = false;     // and exactly the right ranks or the right connection
  double latency_s = 0;   // from the fault to the verdict
  double latency_iterations = 0;
  /// Classes of distinct verdicts that blame somebody or something falsely.
  std::vector<detect::FaultClass> wrong;
  double job_s = 0;  // simulated
  detect::DetectorCounters counters;
  std::vector<detect::Verdict> said;  // each distinct verdict once
};

Outcome RunScenario(const Scenario& scenario, uint64_t seed, const RunLimits& limits);

/// The classes that are right for a fault; the first is the usual one.
std::vector<detect::FaultClass> RightClasses(FaultKind kind);

}  // namespace holdfast::sim
