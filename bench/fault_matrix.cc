// The fault matrix: its cells and their runs, with simulated jobs and the real detector.

#include "bench/fault_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <ctime>
#include <thread>

#include "base/random.h"
#include "bench/fault_matrix_keep.h"
#include "testing/sim/trace.h"

namespace holdfast::bench {
namespace {

using sim::FaultKind;

struct Fault {
  std::string name;
  FaultKind kind;
  double magnitude = 0;
  double duty = 1;
};

std::vector<Fault> Faults() {
  std::vector<Fault> faults;
  for (FaultKind kind :
       {FaultKind::kStopped, FaultKind::kKilled, FaultKind::kNodeLost, FaultKind::kInfiniteKernel,
        FaultKind::kCpuSpin, FaultKind::kLoaderSleep, FaultKind::kTwoStopped,
        FaultKind::kMismatched, FaultKind::kSkipped, FaultKind::kDroppedEdge, FaultKind::kSlowEdge,
        FaultKind::kSlowSend, FaultKind::kSlowReceive, FaultKind::kLatency}) {
    faults.push_back({std::string(ToString(kind)), kind});
  }
  for (int percent : {5, 10, 20, 50, 100}) {
    faults.push_back({fmt::format("GPU {} % slow", percent), FaultKind::kSlowGpu, percent * 0.01});
  }
  faults.push_back({"GPU 50 % slow, 10 % of the time", FaultKind::kIntermittent, 0.5, 0.1});
  faults.push_back({"GPU 50 % slow, 50 % of the time", FaultKind::kIntermittent, 0.5, 0.5});
  faults.push_back({"two GPUs 30 % slow", FaultKind::kTwoSlow, 0.3});
  return faults;
}

std::vector<MatrixCell> Cells(const MatrixOptions& options) {
  std::vector<MatrixCell> cells;
  for (uint32_t world : options.worlds) {
    for (sim::Shape shape : sim::kShapes) {
      for (const Fault& fault : Faults()) {
        cells.push_back(
            {fault.name, {shape, world, fault.kind, fault.magnitude, fault.duty, {}}, false, {}});
      }
      for (const sim::Negative& negative : sim::Negatives()) {
        cells.push_back({std::string(negative.name),
                         {shape, world, FaultKind::kNone, 0, 1, negative.conditions},
                         true,
                         {}});
      }
    }
  }
  std::erase_if(cells, [&](const MatrixCell& cell) {
    return cell.name.find(options.only) == std::string::npos;
  });
  for (MatrixCell& cell : cells) {
    cell.outcomes.resize(options.SeedsFor(cell.scenario.world));
  }
  return cells;
}

/// Returns the random stream of a run. Each cell draws its own jobs, independent of other cells, so
/// that the rows are statistically independent.
uint64_t StreamOf(const MatrixCell& cell, uint64_t seed) {
  uint64_t stream = Random(seed).Next();
  auto mix = [&](uint64_t value) { stream = Random(stream ^ value).Next(); };
  for (const char letter : cell.name) mix(static_cast<unsigned char>(letter));
  mix(static_cast<uint64_t>(cell.scenario.shape));
  mix(cell.scenario.world);
  return stream;
}

/// Returns the CPU time of this thread. Other programs on the machine do not count.
double CpuMs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

}  // namespace

Interval Wilson(uint64_t hits, uint64_t all) {
  if (all == 0) return {};
  constexpr double z = 1.959964;
  const auto n = static_cast<double>(all);
  const double p = static_cast<double>(hits) / n;
  const double middle = (p + z * z / (2 * n)) / (1 + z * z / n);
  const double half = z * std::sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n);
  return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

std::vector<MatrixCell> RunMatrix(const MatrixOptions& options) {
  std::vector<MatrixCell> cells = Cells(options);
  std::vector<std::pair<MatrixCell*, size_t>> runs;  // with the seed
  for (MatrixCell& cell : cells) {
    for (size_t seed = 0; seed < cell.outcomes.size(); ++seed) runs.emplace_back(&cell, seed);
  }
  // Run seed by seed, small jobs first: an interrupted matrix then has complete seeds in its file.
  std::stable_sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->scenario.world, a.second) <
           std::pair(b.first->scenario.world, b.second);
  });
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i = next++; i < runs.size(); i = next++) {
      const auto [cell, seed] = runs[i];
      sim::Outcome& outcome = cell->outcomes[seed];
      const uint64_t number = options.first_seed + seed;
      if (options.kept != nullptr && options.kept->Find(*cell, number, &outcome)) continue;
      outcome = RunScenario(cell->scenario, StreamOf(*cell, number), LimitsFor(cell->scenario));
      if (options.kept != nullptr) options.kept->Add(*cell, number, outcome);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i < options.jobs; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return cells;
}

std::vector<EvaluationCost> MeasureEvaluations(bool quick) {
  std::vector<EvaluationCost> costs;
  for (uint32_t world : {8U, 64U, 512U, 1024U, 4096U, 10'240U}) {
    for (const FaultKind kind : {FaultKind::kTwoSlow, FaultKind::kCpuSpin}) {
      std::vector<double> evaluate_ms;
      std::vector<double> observe_ms;
      for (uint64_t seed = 1; seed <= (quick ? 1U : 4U); ++seed) {
        const sim::Scenario scenario{sim::Shape::kTensorData, world, kind, 0.3, 1, {}};
        sim::Trace trace(scenario, seed);
        detect::Detector detector(Incarnation{1}, world);
        double tick_s = 1;
        while (tick_s < (kind == FaultKind::kCpuSpin ? 40 : 60)) {
          trace.Advance();
          for (; tick_s <= trace.horizon_s(); tick_s += 1) {
            std::vector<sim::Trace::Delivery> deliveries;
            while (auto delivery = trace.Next(tick_s)) deliveries.push_back(std::move(*delivery));
            const double begin = CpuMs();
            for (const auto& delivery : deliveries) {
              detector.Observe(*delivery.digest, sim::DetectorTime(delivery.at_s));
            }
            const double observed = CpuMs();
            const auto verdicts = detector.Evaluate(sim::DetectorTime(tick_s));
            const double evaluated = CpuMs();
            observe_ms.push_back(observed - begin);
            // For a hang, only an evaluation that finds the hang counts.
            if (kind == FaultKind::kTwoSlow || !verdicts.empty()) {
              evaluate_ms.push_back(evaluated - observed);
            }
          }
        }
      }
      std::sort(evaluate_ms.begin(), evaluate_ms.end());
      std::sort(observe_ms.begin(), observe_ms.end());
      if (evaluate_ms.empty()) continue;
      costs.push_back({.ranks = world,
                       .state = kind == FaultKind::kCpuSpin ? "hung" : "runs, two slow GPUs",
                       .p50_ms = evaluate_ms[evaluate_ms.size() / 2],
                       .p99_ms = evaluate_ms[(evaluate_ms.size() - 1) * 99 / 100],
                       .observe_ms = observe_ms[observe_ms.size() / 2]});
    }
  }
  return costs;
}

}  // namespace holdfast::bench
