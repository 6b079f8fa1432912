#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/bench.h"
#include "testing/sim/score.h"

namespace holdfast::bench {

/// One cell: a scenario that runs with many seeds.
struct MatrixCell {
  std::string name;  // of the fault or the negative
  sim::Scenario scenario;
  bool negative = false;
  std::vector<sim::Outcome> outcomes;  // by seed
};

class KeptOutcomes;

struct MatrixOptions {
  uint32_t seeds = 30;
  std::map<uint32_t, uint32_t> seeds_of;  // by number of ranks, where it differs from `seeds`
  /// Reports and tuning never share seeds.
  uint64_t first_seed = 6'000'000;
  std::vector<uint32_t> worlds = {8, 64, 1024, 10'240};
  std::string only;              // cells whose name contains it
  uint32_t jobs = 1;             // threads
  KeptOutcomes* kept = nullptr;  // outcomes of earlier runs, to which new ones are added
  uint32_t SeedsFor(uint32_t world) const {
    const auto found = seeds_of.find(world);
    return found == seeds_of.end() ? seeds : found->second;
  }
};

/// Runs every fault and every negative with every shape and size. The outcomes do not depend on
/// `jobs`.
std::vector<MatrixCell> RunMatrix(const MatrixOptions& options);

/// CPU time of one evaluation, by number of ranks.
struct EvaluationCost {
  uint32_t ranks = 0;
  std::string state;  // of the job: running or hung
  double p50_ms = 0;
  double p99_ms = 0;
  double observe_ms = 0;  // to observe one second's digests, the median
};
std::vector<EvaluationCost> MeasureEvaluations(bool quick);

/// Returns the tables of the report in Markdown.
std::string MatrixReport(const std::vector<MatrixCell>& cells, const MatrixOptions& options);
std::string CostTable(const std::vector<EvaluationCost>& costs);
/// Returns the same figures as benchmark results: precision, recall and exactness of each class,
/// and false verdicts per 1,000 job-hours. The spread is the interval at 95 %, and a repetition is
/// a run.
std::vector<BenchResult> MatrixResults(const std::vector<MatrixCell>& cells);

/// Returns the Wilson interval at 95 % of the share `hits` / `all`.
struct Interval {
  double low = 0;
  double high = 1;
};
Interval Wilson(uint64_t hits, uint64_t all);
/// Returns the interval at 95 % of the expected number of events, if `events` independent events
/// were counted.
Interval Poisson(uint64_t events);

}  // namespace holdfast::bench
