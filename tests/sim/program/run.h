#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/detect/detector.h"
#include "tests/sim/program/agents.h"

// Feeds the detector with one simulated job and compares what it says with what is true.

namespace holdfast::sim::program {

struct Case {
  Family family = Family::kDdp;
  uint32_t world = 8;
  FaultSpec fault = Faults().front();
  std::vector<std::string> behaviours;
  FlightRule rule = kAgentsRule;
  double healthy_s = 0;  // of a job without a fault; 0: as long as is usual
};

/// A verdict that is not true.
struct FalseVerdict {
  detect::FaultClass fault = detect::FaultClass::kFabric;
  bool names = false;     // a rank or a connection
  bool restarts = false;  // the job would be started again
};

struct Outcome {
  bool took_effect = true;  // of a fault: otherwise the run says nothing
  bool found = false;       // the right class, and nobody else blamed in it; of both faults
  bool exact = false;       // and exactly the rank or the connection
  double latency_s = 0;     // from the fault to the verdict
  double latency_steps = 0;
  double suspicion_s = -1;  // from the fault to the first suspicion or verdict; −1: none
  std::vector<FalseVerdict> wrong;
  double job_s = 0;
  struct Said {
    double at_s = 0;
    bool wrong = false;
    detect::Verdict verdict;
  };
  std::vector<Said> said;  // each distinct verdict once
  double onset_s = 0;
  std::string truth;  // in words
};

/// Reproducible: one seed, one outcome.
Outcome RunCase(const Case& what, uint64_t seed);

/// What a run is made of, for tests that look inside.
struct World {
  Setting setting;
  Job job;
  std::vector<Fault> faults;  // none, one, or two
  uint64_t seed = 0;          // of the engine
};
World MakeWorld(const Case& what, Noise& noise);

/// The detector's clock.
Clock::TimePoint ListenerTime(double true_s);

}  // namespace holdfast::sim::program
