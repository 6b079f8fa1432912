#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "storage/base/status.h"
#include "tests/sim/score.h"

namespace holdfast::bench {

/// One cell: a scenario, run with many seeds.
struct MatrixCell {
  std::string name;  // of the fault or the negative
  sim::Scenario scenario;
  bool negative = false;
  std::vector<sim::Outcome> outcomes;  // by seed
};

class KeptOutcomes;

struct MatrixOptions {
  uint32_t seeds = 30;
  std::map<uint32_t, uint32_t> seeds_of;  // by number of ranks, where it is another
  /// Reporting and tuning never share a seed.
  uint64_t first_seed = 6'000'000;
  std::vector<uint32_t> worlds = {8, 64, 1024, 10'240};
  std::string only;              // cells whose name contains it
  uint32_t jobs = 1;             // threads
  KeptOutcomes* kept = nullptr;  // runs made before are taken from it, others added
  uint32_t SeedsFor(uint32_t world) const {
    const auto found = seeds_of.find(world);
    return found == seeds_of.end() ? seeds : found->second;
  }
};

/// Every fault and every negative with every shape and size. Reproducible whatever `jobs` is.
std::vector<MatrixCell> RunMatrix(const MatrixOptions& options);

/// One evaluation's time by the number of ranks.
struct EvaluationCost {
  uint32_t ranks = 0;
  std::string state;  // of the job: running, hung
  double p50_ms = 0;
  double p99_ms = 0;
  double observe_ms = 0;  // taking in one second's digests, the median
};
std::vector<EvaluationCost> MeasureEvaluations(bool quick);

/// The tables of the report in Markdown.
std::string MatrixReport(const std::vector<MatrixCell>& cells, const MatrixOptions& options);
std::string CostTable(const std::vector<EvaluationCost>& costs);
/// The same figures in the form of all benchmarks: precision, recall and exactness of each class,
/// and false verdicts in 1,000 job-hours. The spread is the interval at 95 %, a repetition is a
/// run.
std::vector<BenchResult> MatrixResults(const std::vector<MatrixCell>& cells);

/// A Wilson interval at 95 % of `hits` of `all`.
struct Interval {
  double low = 0;
  double high = 1;
};
Interval Wilson(uint64_t hits, uint64_t all);
/// An interval at 95 % of a number of independent events of which so many were counted.
Interval Poisson(uint64_t events);

}  // namespace holdfast::bench
