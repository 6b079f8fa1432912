// The tables and result rows of the fault matrix over rank programs.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "bench/fault_matrix.h"
#include "bench/program_matrix.h"

namespace holdfast::bench {
namespace {

using detect::FaultClass;
using sim::program::FaultKind;
using sim::program::Outcome;

constexpr FaultClass kClasses[] = {FaultClass::kDead,        FaultClass::kComputeHang,
                                   FaultClass::kCommHang,    FaultClass::kSoftwareMismatch,
                                   FaultClass::kComputeSlow, FaultClass::kCommSlow};

bool IsHealthy(const ProgramCell& cell) { return cell.what.fault.kind == FaultKind::kNone; }

/// Whether the fault is reported separately, since such a small slowdown is not always found.
bool IsSmall(const ProgramCell& cell) {
  return cell.what.fault.kind == FaultKind::kSlowGpu && cell.what.fault.magnitude < 0.1;
}

/// Whether the goal allows more false alerts with this behaviour.
bool IsHard(const std::string& behaviour) {
  return behaviour == "congestion waves" || behaviour.starts_with("mixed") ||
         behaviour == "silicon 4%" || behaviour == "random";
}

struct Faulty {
  uint64_t runs = 0;
  uint64_t found = 0;
  uint64_t exact = 0;
  uint64_t blamed = 0;   // runs with a false verdict
  uint64_t evicted = 0;  // runs with a false verdict that restarts the job
  std::vector<double> seconds;
  std::vector<double> suspicion_s;

  void Add(const Outcome& outcome) {
    if (!outcome.took_effect) return;
    ++runs;
    if (outcome.suspicion_s >= 0) suspicion_s.push_back(outcome.suspicion_s);
    found += outcome.found ? 1 : 0;
    exact += outcome.exact ? 1 : 0;
    blamed += outcome.wrong.empty() ? 0 : 1;
    evicted += std::any_of(outcome.wrong.begin(), outcome.wrong.end(),
                           [](const auto& wrong) { return wrong.restarts; })
                   ? 1
                   : 0;
    if (outcome.found) seconds.push_back(outcome.latency_s);
  }
};

struct Healthy {
  uint64_t runs = 0;
  uint64_t jobs_with_false = 0;
  uint64_t alerts = 0;    // verdicts that name a rank or a connection or restart the job
  uint64_t restarts = 0;  // of these, verdicts that restart the job
  uint64_t unnamed = 0;   // alerts that name no rank or connection
  double hours = 0;

  void Add(const Outcome& outcome) {
    ++runs;
    hours += outcome.job_s / 3600;
    bool any = false;
    for (const auto& wrong : outcome.wrong) {
      const bool counts = wrong.names || wrong.restarts;
      alerts += counts ? 1 : 0;
      restarts += wrong.restarts ? 1 : 0;
      unnamed += counts ? 0 : 1;
      any |= counts;
    }
    jobs_with_false += any ? 1 : 0;
  }
};

std::string Share(uint64_t hits, uint64_t all) {
  if (all == 0) return "–";
  const Interval interval = Wilson(hits, all);
  return fmt::format("{}/{} = {:.3f} ({:.3f}–{:.3f})", hits, all,
                     static_cast<double>(hits) / static_cast<double>(all), interval.low,
                     interval.high);
}

std::string Percentile(std::vector<double> values, double p) {
  if (values.empty()) return "–";
  std::sort(values.begin(), values.end());
  const auto at = static_cast<size_t>(std::lround(p * static_cast<double>(values.size() - 1)));
  return fmt::format("{:.1f}", values[at]);
}

std::string Row(const std::string& name, const Faulty& tally) {
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} / {} | {} / {} |\n", name, tally.runs,
                     Share(tally.found, tally.runs), Share(tally.exact, tally.runs), tally.blamed,
                     tally.evicted, Percentile(tally.seconds, 0.5), Percentile(tally.seconds, 0.99),
                     Percentile(tally.suspicion_s, 0.5), Percentile(tally.suspicion_s, 0.99));
}

std::string Row(const std::string& name, const Healthy& tally) {
  const Interval alerts = Poisson(tally.alerts);
  const double scale = 1000 / tally.hours;
  return fmt::format("| {} | {} | {:.1f} | {} | {} | {:.0f} ({:.0f}–{:.0f}) | {} | {} |\n", name,
                     tally.runs, tally.hours, tally.jobs_with_false, tally.alerts,
                     static_cast<double>(tally.alerts) * scale, alerts.low * scale,
                     alerts.high * scale, tally.restarts, tally.unnamed);
}

/// Tallies by name, in the order of first appearance.
template <typename Tally>
class Ordered {
 public:
  Tally& operator[](const std::string& name) {
    const auto [found, added] = at_.emplace(name, tallies_.size());
    if (added) tallies_.emplace_back(name, Tally());
    return tallies_[found->second].second;
  }
  std::string Rows() const {
    std::string rows;
    for (const auto& [name, tally] : tallies_) {
      if (tally.runs > 0) rows += Row(name, tally);
    }
    return rows;
  }
  const std::vector<std::pair<std::string, Tally>>& all() const { return tallies_; }

 private:
  std::map<std::string, size_t> at_;
  std::vector<std::pair<std::string, Tally>> tallies_;
};

constexpr std::string_view kFaultyHead =
    " | runs | found | exact | runs with a false verdict | that restarts | verdict, s p50 / p99 | "
    "suspicion, s p50 / p99 |\n|---|---|---|---|---|---|---|---|\n";
constexpr std::string_view kHealthyHead =
    " | jobs | job-hours | jobs with a false alert | false alerts | per 1,000 job-hours (95 %) | "
    "false restarts | alerts without a name |\n|---|---|---|---|---|---|---|---|\n";

std::string NameOf(FaultClass fault) {
  std::string name(ToString(fault));
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

struct Goals {
  std::string recall;
  std::string exact;
};

Goals GoalsOf(FaultClass fault) {
  switch (fault) {
    case FaultClass::kCommHang:
      return {">=0.98", ">=0.9"};
    case FaultClass::kComputeSlow:
      return {">=0.97", ">=0.97"};
    case FaultClass::kCommSlow:
      return {">=0.97", ">=0.9"};
    default:
      return {">=0.99", ">=0.99"};
  }
}

BenchResult ShareRow(const std::string& name, uint64_t hits, uint64_t all,
                     const std::string& goal) {
  const Interval interval = Wilson(hits, all);
  return {.name = name,
          .ratio = static_cast<double>(hits) / static_cast<double>(all),
          .ours = static_cast<double>(hits),
          .reference = static_cast<double>(all),
          .unit = "runs",
          .goal = goal,
          .note = "simulated; the spread is the Wilson interval at 95 %",
          .repetitions = static_cast<uint32_t>(all),
          .least = interval.low,
          .most = interval.high};
}

BenchResult RateRow(const std::string& name, uint64_t events, const Healthy& tally,
                    const std::string& goal) {
  const Interval counted = Poisson(events);
  return {.name = name,
          .ratio = 1000 * static_cast<double>(events) / tally.hours,
          .ours = static_cast<double>(events),
          .reference = tally.hours,
          .unit = "1/1000 job-hours",
          .goal = goal,
          .note = "simulated healthy jobs; the spread is the Poisson interval at 95 %",
          .repetitions = static_cast<uint32_t>(tally.runs),
          .least = 1000 * counted.low / tally.hours,
          .most = 1000 * counted.high / tally.hours};
}

/// Adds rows for the seconds to the first suspicion and to the verdict.
void AddTimes(const std::string& name, FaultClass fault, const Faulty& tally,
              std::vector<BenchResult>& rows) {
  const bool hang = fault != FaultClass::kComputeSlow && fault != FaultClass::kCommSlow;
  const auto add = [&](const std::string& what, std::vector<double> seconds,
                       const std::string& goal) {
    if (seconds.empty()) return;
    std::sort(seconds.begin(), seconds.end());
    const double p99 = seconds[(seconds.size() - 1) * 99 / 100];
    rows.push_back({.name = what + "_p99_s_" + name,
                    .ratio = p99,
                    .ours = p99,
                    .reference = seconds[seconds.size() / 2],
                    .unit = "s",
                    .goal = hang ? goal : "",
                    .note = "simulated; the reference is the median",
                    .repetitions = static_cast<uint32_t>(seconds.size()),
                    .least = seconds.front(),
                    .most = seconds.back()});
  };
  add("suspicion", tally.suspicion_s, "<=10");
  add("verdict", tally.seconds, "<=60");
}

/// Adds the rows of some cells. `suffix` is empty or names the family.
void AddRows(const std::vector<const ProgramCell*>& cells, const std::string& suffix,
             std::vector<BenchResult>& rows) {
  std::map<FaultClass, Faulty> classes;
  std::map<FaultClass, uint64_t> right;  // distinct verdicts, in jobs with a fault
  std::map<FaultClass, uint64_t> wrong;
  std::map<std::string, Faulty> small;
  Healthy ordinary;
  Healthy hard;
  for (const ProgramCell* cell : cells) {
    for (const Outcome& outcome : cell->outcomes) {
      if (IsHealthy(*cell)) {
        (IsHard(cell->behaviour) ? hard : ordinary).Add(outcome);
        continue;
      }
      if (!outcome.took_effect) continue;
      const FaultClass usual = RightClasses(cell->what.fault.kind).front();
      (IsSmall(*cell) ? small[std::string(cell->what.fault.name)] : classes[usual]).Add(outcome);
      for (const Outcome::Reported& reported : outcome.reported) {
        ++(reported.wrong ? wrong : right)[reported.verdict.fault];
      }
    }
  }
  for (const FaultClass fault : kClasses) {
    const Faulty& tally = classes[fault];
    const Goals goals = GoalsOf(fault);
    if (tally.runs > 0) {
      AddTimes(NameOf(fault) + suffix, fault, tally, rows);
      rows.push_back(
          ShareRow("recall_" + NameOf(fault) + suffix, tally.found, tally.runs, goals.recall));
      rows.push_back(
          ShareRow("exact_" + NameOf(fault) + suffix, tally.exact, tally.runs, goals.exact));
    }
    const uint64_t verdicts = right[fault] + wrong[fault];
    if (verdicts > 0) {
      rows.push_back(
          ShareRow("precision_" + NameOf(fault) + suffix, right[fault], verdicts, ">=0.98"));
    }
  }
  for (const auto& [name, tally] : small) {
    if (tally.runs == 0) continue;
    rows.push_back(ShareRow("exact_" + name + suffix, tally.exact, tally.runs,
                            name == "gpu-5%" ? ">=0.9" : ""));
  }
  if (ordinary.runs > 0) {
    rows.push_back(RateRow("false_alerts" + suffix, ordinary.alerts, ordinary, "<=5"));
  }
  if (hard.runs > 0) {
    rows.push_back(RateRow("false_alerts_congestion_mixed" + suffix, hard.alerts, hard, "<=50"));
  }
  Healthy all = ordinary;
  all.runs += hard.runs;
  all.hours += hard.hours;
  if (all.runs > 0) {
    rows.push_back(
        RateRow("false_restarts" + suffix, ordinary.restarts + hard.restarts, all, "<=0"));
  }
}

}  // namespace

std::string ProgramReport(const std::vector<ProgramCell>& cells) {
  Ordered<Faulty> classes;
  Ordered<Faulty> by_fault;
  Ordered<Faulty> by_family;
  Ordered<Faulty> by_world;
  Ordered<Faulty> by_connections;
  Ordered<Faulty> worst;
  Ordered<Healthy> healthy_family;
  Ordered<Healthy> healthy_behaviour;
  Healthy all_healthy;
  Faulty all_faulty;
  for (const ProgramCell& cell : cells) {
    const std::string world = fmt::format("{} ranks", cell.what.world);
    for (const Outcome& outcome : cell.outcomes) {
      if (IsHealthy(cell)) {
        healthy_family[cell.family].Add(outcome);
        healthy_behaviour[cell.behaviour].Add(outcome);
        all_healthy.Add(outcome);
        continue;
      }
      const FaultKind kind = cell.what.fault.kind;
      const std::string fault(cell.what.fault.name);
      if (!IsSmall(cell)) {
        classes[std::string(ToString(RightClasses(kind).front()))].Add(outcome);
      }
      by_fault[fault].Add(outcome);
      by_family[cell.family + (IsHang(kind) ? " hang" : " slow")].Add(outcome);
      by_world[world].Add(outcome);
      if (IsHang(kind) && RightClasses(kind).front() == FaultClass::kCommHang) {
        by_connections[fault + (outcome.reports_edges ? ", reported" : ", not reported")].Add(
            outcome);
      }
      worst[fault + ", " + cell.family + ", " + world].Add(outcome);
      all_faulty.Add(outcome);
    }
  }
  std::string report;
  if (all_faulty.runs > 0) {
    const auto table = [&](std::string_view head, const Ordered<Faulty>& tallies) {
      report += fmt::format("| {}{}{}\n", head, kFaultyHead, tallies.Rows());
    };
    table("class (without 3 % and 5 % slow GPUs)", classes);
    table("fault", by_fault);
    table("family", by_family);
    table("world", by_world);
    table("connections of operations in flight", by_connections);
    report += fmt::format("| all{}{}\n", kFaultyHead, Row("all", all_faulty));
    auto sorted = worst.all();
    std::erase_if(sorted, [](const auto& one) {
      return one.second.runs == 0 || one.second.exact == one.second.runs;
    });
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
      return a.second.exact * b.second.runs < b.second.exact * a.second.runs;
    });
    if (sorted.size() > 20) sorted.resize(20);
    if (!sorted.empty()) report += fmt::format("| worst cells{}", kFaultyHead);
    for (const auto& [name, tally] : sorted) report += Row(name, tally);
    report += "\n";
  }
  if (all_healthy.runs > 0) {
    report += fmt::format("| healthy, by family{}{}", kHealthyHead, healthy_family.Rows());
    report += Row("all", all_healthy) + "\n";
    report += fmt::format("| healthy, by behaviour{}{}", kHealthyHead, healthy_behaviour.Rows());
  }
  return report;
}

std::vector<BenchResult> ProgramResults(const std::vector<ProgramCell>& cells) {
  std::vector<BenchResult> rows;
  std::vector<std::string> families;
  std::vector<const ProgramCell*> all;
  for (const ProgramCell& cell : cells) {
    all.push_back(&cell);
    if (std::find(families.begin(), families.end(), cell.family) == families.end()) {
      families.push_back(cell.family);
    }
  }
  AddRows(all, "", rows);
  for (const std::string& family : families) {
    std::vector<const ProgramCell*> of_family;
    for (const ProgramCell& cell : cells) {
      if (cell.family == family) of_family.push_back(&cell);
    }
    AddRows(of_family, "/" + family, rows);
  }
  return rows;
}

std::string ProgramFailures(const std::vector<ProgramCell>& cells, uint64_t first_seed) {
  std::string text;
  for (const ProgramCell& cell : cells) {
    for (size_t i = 0; i < cell.outcomes.size(); ++i) {
      const Outcome& outcome = cell.outcomes[i];
      const bool right = IsHealthy(cell) || outcome.exact || !outcome.took_effect;
      if (right && outcome.wrong.empty()) continue;
      text += fmt::format(
          "{} {} {} {} ranks seed {}: found {} exact {} wrong {}; {} from {:.0f} s\n",
          cell.what.fault.name, cell.family, cell.behaviour, cell.what.world, first_seed + i,
          outcome.found, outcome.exact, outcome.wrong.size(),
          IsHealthy(cell) ? "healthy" : outcome.truth, IsHealthy(cell) ? 0 : outcome.onset_s);
      for (const Outcome::Reported& reported : outcome.reported) {
        text += fmt::format("    {:.0f} s {}{}, {}: {}\n", reported.at_s,
                            reported.wrong ? "WRONG " : "", ToString(reported.verdict.fault),
                            ToString(reported.verdict.action),
                            fmt::join(reported.verdict.evidence, "; "));
      }
    }
  }
  return text;
}

}  // namespace holdfast::bench
