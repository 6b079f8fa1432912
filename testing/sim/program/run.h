#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/detect/detector.h"
#include "testing/sim/program/agents.h"

// Runs the detector on one simulated job and compares its verdicts with the ground truth.

namespace holdfast::sim::program {

struct Case {
  Family family = Family::kDdp;
  uint32_t world = 8;
  FaultSpec fault = Faults().front();
  std::vector<std::string> behaviours;
  FlightRule rule = kAgentsRule;
  double healthy_s = 0;  // length of a job without a fault; 0: the usual length
};

/// A false verdict.
struct FalseVerdict {
  detect::FaultClass fault = detect::FaultClass::kFabric;
  bool names = false;     // names a rank or a connection
  bool restarts = false;  // would restart the job
};

struct Outcome {
  bool took_effect = true;  // false: the fault never occurred, and the run does not count
  bool found = false;       // all faults have a verdict of the right class that blames nothing else
  bool exact = false;       // and the verdicts name exactly the ranks or connections
  double latency_s = 0;     // from the fault to the verdict
  double latency_steps = 0;
  double suspicion_s = -1;  // from the fault to the first suspicion or verdict; −1: none
  std::vector<FalseVerdict> wrong;
  double job_s = 0;
  struct Reported {
    double at_s = 0;
    bool wrong = false;
    detect::Verdict verdict;
  };
  std::vector<Reported> reported;  // each distinct verdict once
  double onset_s = 0;
  bool reports_edges = false;  // the job reports the connections of operations in flight
  std::string truth;           // ground truth, for reports
};

/// Runs one case. Reproducible: the seed determines the outcome.
Outcome RunCase(const Case& what, uint64_t seed);

/// The parts of a run, for tests of the simulator itself.
struct RunSetup {
  Setting setting;
  Job job;
  std::vector<Fault> faults;  // none, one, or two
  uint64_t seed = 0;          // of the engine
};
RunSetup MakeRunSetup(const Case& what, Noise& noise);

/// Converts a time to the detector's clock.
Clock::TimePoint DetectorTime(double true_s);

}  // namespace holdfast::sim::program
