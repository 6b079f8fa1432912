// The tables of the fault matrix.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "bench/fault_matrix.h"

namespace holdfast::bench {
namespace {

using detect::FaultClass;
using sim::Outcome;

/// A slowdown below the detector's stated sensitivity.
constexpr std::string_view kLeast = "GPU 5 % slow";

struct Tally {
  uint64_t runs = 0;
  uint64_t detected = 0;
  uint64_t exact = 0;
  uint64_t wrong = 0;  // verdicts
  std::vector<double> seconds;
  std::vector<double> iterations;

  void Add(const Outcome& outcome) {
    ++runs;
    detected += outcome.detected ? 1 : 0;
    exact += outcome.exact ? 1 : 0;
    wrong += outcome.wrong.size();
    if (!outcome.detected) return;
    seconds.push_back(outcome.latency_s);
    iterations.push_back(outcome.latency_iterations);
  }
};

std::string Percentile(std::vector<double> values, double p) {
  if (values.empty()) return "–";
  std::sort(values.begin(), values.end());
  const auto at = static_cast<size_t>(std::lround(p * static_cast<double>(values.size() - 1)));
  return fmt::format("{:.1f}", values[at]);
}

std::string Share(uint64_t hits, uint64_t all) {
  if (all == 0) return "–";
  const Interval interval = Wilson(hits, all);
  return fmt::format("{:.3f} ({:.3f}–{:.3f})", static_cast<double>(hits) / static_cast<double>(all),
                     interval.low, interval.high);
}

std::string Latencies(const Tally& tally) {
  return fmt::format("{} / {} | {} / {}", Percentile(tally.iterations, 0.5),
                     Percentile(tally.iterations, 0.99), Percentile(tally.seconds, 0.5),
                     Percentile(tally.seconds, 0.99));
}

constexpr FaultClass kClasses[] = {FaultClass::kDead,        FaultClass::kComputeHang,
                                   FaultClass::kCommHang,    FaultClass::kSoftwareMismatch,
                                   FaultClass::kComputeSlow, FaultClass::kCommSlow};

struct ClassTallies {
  std::map<FaultClass, Tally> tallies;
  std::map<FaultClass, uint64_t> wrong;  // false verdicts of the class, in all runs
};

ClassTallies TallyClasses(const std::vector<MatrixCell>& cells) {
  ClassTallies all;
  for (const MatrixCell& cell : cells) {
    for (const Outcome& outcome : cell.outcomes) {
      for (FaultClass fault : outcome.wrong) ++all.wrong[fault];
      if (!cell.negative) all.tallies[RightClasses(cell.scenario.fault).front()].Add(outcome);
    }
  }
  return all;
}

std::string ByClass(const std::vector<MatrixCell>& cells) {
  auto [tallies, wrong] = TallyClasses(cells);
  std::string table =
      "| class | runs | precision | recall | exact rank or edge | iterations p50 / p99 | seconds "
      "p50 / p99 |\n|---|---|---|---|---|---|---|\n";
  Tally all;
  Tally all_but_least;
  uint64_t all_wrong = 0;
  for (const MatrixCell& cell : cells) {
    if (cell.negative || cell.name == kLeast) continue;
    for (const Outcome& outcome : cell.outcomes) all_but_least.Add(outcome);
  }
  for (FaultClass fault : kClasses) {
    const Tally& tally = tallies[fault];
    const uint64_t false_ones = wrong[fault];
    table += fmt::format("| {} | {} | {} | {} | {} | {} |\n", ToString(fault), tally.runs,
                         Share(tally.detected, tally.detected + false_ones),
                         Share(tally.detected, tally.runs), Share(tally.exact, tally.runs),
                         Latencies(tally));
    all.runs += tally.runs;
    all.detected += tally.detected;
    all.exact += tally.exact;
  }
  for (const auto& [fault, count] : wrong) all_wrong += count;
  table += fmt::format("| all | {} | {} | {} | {} | | |\n", all.runs,
                       Share(all.detected, all.detected + all_wrong), Share(all.detected, all.runs),
                       Share(all.exact, all.runs));
  table += fmt::format("| all without {} | {} | {} | {} | {} | | |\n", kLeast, all_but_least.runs,
                       Share(all_but_least.detected, all_but_least.detected + all_wrong),
                       Share(all_but_least.detected, all_but_least.runs),
                       Share(all_but_least.exact, all_but_least.runs));
  return table;
}

std::string ByFault(const std::vector<MatrixCell>& cells) {
  std::vector<std::string> order;
  std::map<std::string, Tally> tallies;
  std::map<std::string, std::map<uint32_t, Tally>> by_world;
  std::vector<uint32_t> worlds;
  for (const MatrixCell& cell : cells) {
    if (cell.negative) continue;
    const uint32_t world = cell.scenario.world;
    if (tallies.count(cell.name) == 0) order.push_back(cell.name);
    if (std::find(worlds.begin(), worlds.end(), world) == worlds.end()) worlds.push_back(world);
    for (const Outcome& outcome : cell.outcomes) {
      tallies[cell.name].Add(outcome);
      by_world[cell.name][world].Add(outcome);
    }
  }
  std::string table = "| fault | runs | found | exact |";
  for (uint32_t world : worlds) table += fmt::format(" exact, {} ranks |", world);
  table += " false verdicts | iterations p50 / p99 | seconds p50 / p99 |\n|---|---|---|---|";
  for (size_t i = 0; i < worlds.size() + 3; ++i) table += "---|";
  table += "\n";
  for (const std::string& name : order) {
    const Tally& tally = tallies[name];
    table += fmt::format("| {} | {} | {} | {} |", name, tally.runs, tally.detected, tally.exact);
    for (uint32_t world : worlds) {
      const Tally& part = by_world[name][world];
      table += fmt::format(" {}/{} |", part.exact, part.runs);
    }
    table += fmt::format(" {} | {} |\n", tally.wrong, Latencies(tally));
  }
  return table;
}

std::string ByNegative(const std::vector<MatrixCell>& cells) {
  std::vector<std::string> order;
  std::map<std::string, Tally> tallies;
  std::map<std::string, double> hours;
  for (const MatrixCell& cell : cells) {
    if (!cell.negative) continue;
    if (tallies.count(cell.name) == 0) order.push_back(cell.name);
    for (const Outcome& outcome : cell.outcomes) {
      tallies[cell.name].Add(outcome);
      hours[cell.name] += outcome.job_s / 3600;
    }
  }
  std::string table =
      "| legitimate behaviour | jobs | job-hours | false verdicts | per 1,000 job-hours (95 %) "
      "|\n|---|---|---|---|---|\n";
  uint64_t all_wrong = 0;
  uint64_t all_runs = 0;
  double all_hours = 0;
  auto row = [](const std::string& name, uint64_t runs, double job_hours, uint64_t wrong) {
    const Interval counted = Poisson(wrong);
    return fmt::format("| {} | {} | {:.1f} | {} | {:.1f} ({:.1f}–{:.1f}) |\n", name, runs,
                       job_hours, wrong, 1000 * static_cast<double>(wrong) / job_hours,
                       1000 * counted.low / job_hours, 1000 * counted.high / job_hours);
  };
  for (const std::string& name : order) {
    table += row(name, tallies[name].runs, hours[name], tallies[name].wrong);
    all_wrong += tallies[name].wrong;
    all_runs += tallies[name].runs;
    all_hours += hours[name];
  }
  if (order.size() > 1) table += row("all", all_runs, all_hours, all_wrong);
  return table;
}

BenchResult ShareResult(const std::string& name, uint64_t hits, uint64_t all) {
  const Interval interval = Wilson(hits, all);
  return {.name = "fault_matrix_" + name,
          .ratio = static_cast<double>(hits) / static_cast<double>(all),
          .ours = static_cast<double>(hits),
          .reference = static_cast<double>(all),
          .unit = "runs",
          .goal = ">=0.99",
          .note = "",
          .repetitions = static_cast<uint32_t>(all),
          .least = interval.low,
          .most = interval.high};
}

}  // namespace

/// Uses the square-root transform, which is accurate enough here. Without events, the bound is
/// 3.69.
Interval Poisson(uint64_t events) {
  if (events == 0) return {0, 3.69};
  const auto k = static_cast<double>(events);
  return {std::pow(std::max(0.0, std::sqrt(k) - 0.98), 2), std::pow(std::sqrt(k + 1) + 0.98, 2)};
}

std::vector<BenchResult> MatrixResults(const std::vector<MatrixCell>& cells) {
  std::vector<BenchResult> results;
  auto [tallies, wrong] = TallyClasses(cells);
  for (FaultClass fault : kClasses) {
    const Tally& tally = tallies[fault];
    if (tally.runs == 0) continue;
    std::string name(ToString(fault));
    std::replace(name.begin(), name.end(), ' ', '_');
    if (tally.detected + wrong[fault] != 0) {
      results.push_back(
          ShareResult(name + "_precision", tally.detected, tally.detected + wrong[fault]));
    }
    results.push_back(ShareResult(name + "_recall", tally.detected, tally.runs));
    results.push_back(ShareResult(name + "_exact", tally.exact, tally.runs));
  }
  uint64_t runs = 0;
  uint64_t false_verdicts = 0;
  double hours = 0;
  for (const MatrixCell& cell : cells) {
    if (!cell.negative) continue;
    runs += cell.outcomes.size();
    for (const Outcome& outcome : cell.outcomes) {
      false_verdicts += outcome.wrong.size();
      hours += outcome.job_s / 3600;
    }
  }
  if (runs == 0 || hours <= 0) return results;
  const Interval counted = Poisson(false_verdicts);
  const double ratio = 1000 * static_cast<double>(false_verdicts) / hours;
  results.push_back({.name = "fault_matrix_false_verdicts",
                     .ratio = ratio,
                     .ours = static_cast<double>(false_verdicts),
                     .reference = hours,
                     .unit = "1/1000 job-hours",
                     .goal = "",
                     .note = "verdicts on healthy jobs ÷ job-hours",
                     .repetitions = static_cast<uint32_t>(runs),
                     .least = 1000 * counted.low / hours,
                     .most = 1000 * counted.high / hours});
  return results;
}

std::string MatrixReport(const std::vector<MatrixCell>& cells, const MatrixOptions& options) {
  std::string sizes;
  for (uint32_t world : options.worlds) {
    sizes += fmt::format("{}{} ranks with {}", sizes.empty() ? "" : ", ", world,
                         options.SeedsFor(world));
  }
  return fmt::format(
             "Seeds per cell: {}; the first is {}.\nEvery cell has each of DP, TP×DP, PP×DP, "
             "MoE.\n\n",
             sizes, options.first_seed) +
         ByClass(cells) + "\n" + ByFault(cells) + "\n" + ByNegative(cells);
}

std::string CostTable(const std::vector<EvaluationCost>& costs) {
  std::string table =
      "| ranks | job | evaluation p50 | p99 | observing one second's digests "
      "|\n|---|---|---|---|---|\n";
  for (const EvaluationCost& cost : costs) {
    table += fmt::format("| {} | {} | {:.3f} ms | {:.3f} ms | {:.2f} ms |\n", cost.ranks,
                         cost.state, cost.p50_ms, cost.p99_ms, cost.observe_ms);
  }
  return table;
}

}  // namespace holdfast::bench
