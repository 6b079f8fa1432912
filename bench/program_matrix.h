#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "tests/sim/program/run.h"

// The fault matrix over rank programs: simulated jobs, the real detector.

namespace holdfast::bench {

/// One cell: a case, run with many seeds.
struct ProgramCell {
  std::string family;
  std::string behaviour;  // what was added to the usual noise
  sim::program::Case what;
  std::vector<sim::program::Outcome> outcomes;  // by seed
};

struct ProgramMatrixOptions {
  std::vector<std::string> families;    // empty: all
  std::vector<std::string> behaviours;  // "base", "all" (each alone), "random"; empty: all
  std::vector<std::string> faults;      // "none", "all"; empty: all and none
  std::vector<uint32_t> worlds = {8};
  uint32_t seeds = 4;
  uint64_t first_seed = 6'000'000;
  double healthy_s = 0;  // of each job without a fault; 0: as long as is usual
  double minutes = 0;    // after which no run is begun; 0: no limit
  uint32_t jobs = 1;     // threads
  sim::program::FlightRule rule = sim::program::kAgentsRule;
};

/// InvalidArgument names what does not exist. Faulty jobs have the named behaviours only where they
/// are named, "base" otherwise.
Result<std::vector<ProgramCell>> RunProgramMatrix(const ProgramMatrixOptions& options);

/// Tables in Markdown: families, faults, behaviours of healthy jobs, the worst cells.
std::string ProgramReport(const std::vector<ProgramCell>& cells);
/// Rows `recall_<class>`, `exact_<class>`, `precision_<class>`, `false_alerts`, `false_restarts`,
/// each of all families and of each, with the interval at 95 % as spread.
std::vector<BenchResult> ProgramResults(const std::vector<ProgramCell>& cells);
/// The time of one evaluation in a job of each family, running and hung: rows
/// `evaluate_p99_ms/<family>`.
std::vector<BenchResult> MeasureProgramEvaluations(const std::vector<std::string>& families,
                                                   uint32_t world);
/// Every run that was not right, with what the detector said.
std::string ProgramFailures(const std::vector<ProgramCell>& cells, uint64_t first_seed);

}  // namespace holdfast::bench
