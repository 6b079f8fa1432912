#include "cli/advise/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace holdfast::cli {
namespace {
constexpr double kSparesQuantile = 0.99;
constexpr uint32_t kSparesMax = 100'000;

double SecondsBetween(int64_t from_nanos, int64_t to_nanos) {
  return static_cast<double>(std::max<int64_t>(to_nanos - from_nanos, 0)) / 1e9;
}

/// Returns the time during which the run recovered from a failure. Recoveries may overlap.
double DownSeconds(const ObservedRun& run) {
  std::vector<std::pair<int64_t, int64_t>> spans;
  for (const ObservedFailure& failure : run.failures) {
    const int64_t from = std::max(failure.wall_nanos, run.started_wall_nanos);
    const int64_t end = failure.recovered_ms
                            ? failure.wall_nanos + *failure.recovered_ms * 1'000'000
                            : run.until_wall_nanos;
    spans.emplace_back(from, std::min(end, run.until_wall_nanos));
  }
  std::sort(spans.begin(), spans.end());
  double down = 0;
  int64_t counted_to = run.started_wall_nanos;
  for (const auto& [from, end] : spans) {
    down += SecondsBetween(std::max(from, counted_to), end);
    counted_to = std::max(counted_to, end);
  }
  return down;
}

void CountTime(const ObservedRun& run, RunAdvice& advice) {
  advice.down_seconds = DownSeconds(run);
  for (const ObservedFailure& failure : run.failures) {
    if (!failure.lost_steps || (*failure.lost_steps > 0 && !run.step_seconds)) {
      advice.again_unknown = true;
    } else {
      advice.again_seconds +=
          static_cast<double>(*failure.lost_steps) * run.step_seconds.value_or(0);
    }
  }
  if (advice.observed_seconds <= 0) return;
  const double lost = advice.down_seconds + advice.again_seconds;
  advice.ettr = std::clamp(1 - lost / advice.observed_seconds, 0.0, 1.0);
}

void CountRecoveries(const ObservedRun& run, RunAdvice& advice) {
  std::vector<double> seconds;
  for (const ObservedFailure& failure : run.failures) {
    if (!failure.recovered_ms) continue;
    seconds.push_back(static_cast<double>(*failure.recovered_ms) / 1e3);
  }
  if (seconds.empty()) return;
  std::sort(seconds.begin(), seconds.end());
  advice.recover_median_seconds = seconds[(seconds.size() - 1) / 2];
  advice.recover_worst_seconds = seconds.back();
}

void AdviseTier(const ObservedRun& run, std::optional<double> stall, TierAdvice& advice) {
  // Tiers beyond memory are filled in the background: unless a cost is given, a save there costs
  // nothing.
  if (!stall && advice.tier != Tier::kMemory) stall = 0;
  if (!stall) {
    advice.why_not = "the cost of a save is unknown: give --stall";
  } else if (*stall <= 0) {
    advice.interval_seconds = 0;
  } else if (!advice.failures.measured()) {
    advice.why_not = fmt::format("not enough incidents yet (n = {})", advice.failures.count);
  } else {
    advice.interval_seconds = BestInterval(*stall, advice.failures.mean_seconds());
    if (run.step_seconds && *run.step_seconds > 0) {
      const double steps = std::round(*advice.interval_seconds / *run.step_seconds);
      advice.interval_steps = static_cast<uint64_t>(std::clamp(steps, 1.0, 1e15));
    }
  }
}
}  // namespace

/// Uses upper limits of a Poisson mean at 95 %, half of chi-square's quantile with 2n + 2 degrees:
/// exact values for few events, Wilson and Hilferty's approximation for more.
double Rate::least_mean_seconds() const {
  constexpr double kExact[] = {2.9957, 4.7439, 6.2958, 7.7537, 9.1535, 10.5130};
  double most = 0;
  if (count < std::size(kExact)) {
    most = kExact[count];
  } else {
    const double n = static_cast<double>(count) + 1;
    most = n * std::pow(1 - 1 / (9 * n) + 1.6449 / (3 * std::sqrt(n)), 3);
  }
  return observed_seconds / most;
}

double BestInterval(double stall_seconds, double mean_seconds) {
  if (stall_seconds >= 2 * mean_seconds) return mean_seconds;
  const double share = stall_seconds / (2 * mean_seconds);
  return std::sqrt(2 * stall_seconds * mean_seconds) * (1 + std::sqrt(share) / 3 + share / 9) -
         stall_seconds;
}

double ExpectedEttr(double stall_seconds, double interval_seconds, double mean_seconds,
                    double recover_seconds) {
  const double lost = (recover_seconds + interval_seconds / 2) / mean_seconds;
  return std::clamp((1 - lost) / (1 + stall_seconds / interval_seconds), 0.0, 1.0);
}

uint32_t PoissonQuantile(double mean, double quantile) {
  double below = 0;
  for (uint32_t k = 0; k < kSparesMax; ++k) {
    below += std::exp(k * std::log(mean) - mean - std::lgamma(k + 1.0));
    if (mean <= 0 || below >= quantile) return k;
  }
  return kSparesMax;
}

RunAdvice Advise(const ObservedRun& run) {
  RunAdvice advice;
  advice.observed_seconds = SecondsBetween(run.started_wall_nanos, run.until_wall_nanos);
  advice.failures = {run.failures.size(), advice.observed_seconds};
  const auto lost = std::count_if(run.failures.begin(), run.failures.end(),
                                  [](const ObservedFailure& failure) { return failure.node_lost; });
  advice.node_losses = {static_cast<size_t>(lost), advice.observed_seconds};
  CountTime(run, advice);
  CountRecoveries(run, advice);

  // The tier that a restart reads: memory after every failure, peers after a lost node, or the disk
  // without peers. Losses that exceed the parity are not recorded.
  const Rate none{0, advice.observed_seconds};
  const Rate rates[] = {advice.failures, run.has_peers ? advice.node_losses : none,
                        run.has_peers ? none : advice.node_losses};
  const Tier tiers[] = {Tier::kMemory, Tier::kPeer, Tier::kDisk};
  for (size_t i = 0; i < advice.tiers.size(); ++i) {
    advice.tiers[i].tier = tiers[i];
    advice.tiers[i].failures = rates[i];
    AdviseTier(run, run.stall_seconds[i], advice.tiers[i]);
  }
  const TierAdvice& memory = advice.tiers[0];
  if (memory.interval_seconds && *memory.interval_seconds > 0 && advice.recover_median_seconds) {
    advice.expected_ettr =
        ExpectedEttr(run.stall_seconds[0].value_or(0), *memory.interval_seconds,
                     memory.failures.mean_seconds(), *advice.recover_median_seconds);
  }
  if (advice.observed_seconds <= 0) return advice;
  const double mean = advice.node_losses.measured() ? advice.node_losses.mean_seconds()
                                                    : advice.node_losses.least_mean_seconds();
  advice.spares = PoissonQuantile(run.repair_seconds / mean, kSparesQuantile);
  return advice;
}

}  // namespace holdfast::cli
