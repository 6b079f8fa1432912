#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/checker.h"

namespace holdfast::simulation {

struct Outcome {
  uint64_t trace = 0;  // a checksum of all that happened
  uint64_t steps = 0;
  double virtual_seconds = 0;
  Checker::Counts counts;
  uint64_t faults = 0;
  uint64_t runs = 0;
  std::vector<std::string> problems;
};

struct ScenarioOptions {
  uint64_t seed = 1;
  std::string dir;  // for sockets; exists
  bool verbose = false;
  double chaos_seconds = 0;  // of virtual time; 0: chosen by the seed
};

/// Simulates one whole system from the seed: first with faults, then without. After the faults
/// have ended, every job must restore the newest version that they have not destroyed, and commit a
/// new one at memory and disk.
Outcome RunScenario(const ScenarioOptions& options);

}  // namespace holdfast::simulation
