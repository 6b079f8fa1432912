#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "testing/sim/program/run.h"

// The fault matrix over rank programs, with simulated jobs and the real detector.

namespace holdfast::bench {

/// One cell: a case that runs with many seeds.
struct ProgramCell {
  std::string family;
  std::string behaviour;  // added to the usual noise
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
  double healthy_s = 0;  // length of each job without a fault; 0: the usual length
  double minutes = 0;    // no run starts later than this; 0: no limit
  uint32_t jobs = 1;     // threads
  sim::program::FlightRule rule = sim::program::kAgentsRule;
};

/// Runs all cells. InvalidArgument: an unknown family, fault or behaviour, named in the message.
/// Without named behaviours, faulty jobs run with "base" only and healthy jobs with all behaviours.
Result<std::vector<ProgramCell>> RunProgramMatrix(const ProgramMatrixOptions& options);

/// Returns tables in Markdown: families, faults, behaviours of healthy jobs, the worst cells.
std::string ProgramReport(const std::vector<ProgramCell>& cells);
/// Returns rows `recall_<class>`, `exact_<class>`, `precision_<class>`, `false_alerts` and
/// `false_restarts`, for all families together and for each. The spread is the interval at 95 %.
std::vector<BenchResult> ProgramResults(const std::vector<ProgramCell>& cells);
/// Measures the time of one evaluation in a job of each family, running and then hung. Returns rows
/// `evaluate_p99_ms/<family>`.
std::vector<BenchResult> MeasureProgramEvaluations(const std::vector<std::string>& families,
                                                   uint32_t world);
/// Returns every run with a missed fault or a false verdict, with the verdicts of the detector.
std::string ProgramFailures(const std::vector<ProgramCell>& cells, uint64_t first_seed);

}  // namespace holdfast::bench
