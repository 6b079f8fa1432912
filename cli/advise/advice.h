#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"

// The arithmetic of `holdfast advise`; docs/advice.md explains it. Pure. A value
// stays empty while there are too few observations to compute it.

namespace holdfast::cli {

/// A rate counts as measured after at least this many failures.
inline constexpr size_t kFailuresMin = 3;

/// A failure that stopped a job's training.
struct ObservedFailure {
  int64_t wall_nanos = 0;               // the last sign of health
  std::optional<int64_t> recovered_ms;  // from then to the first new version
  std::optional<int64_t> lost_steps;    // steps trained again
  bool node_lost = false;               // with the memory of its node
};

/// Observations of a run.
struct ObservedRun {
  int64_t started_wall_nanos = 0;
  int64_t until_wall_nanos = 0;  // now, or the time of its last version after its end
  std::vector<ObservedFailure> failures;
  bool has_peers =
      false;  // has parity groups: a lost node is restored from its peers, not the disk
  std::optional<double> step_seconds;
  std::optional<double> disk_every_seconds;            // between versions on disk
  std::array<std::optional<double>, 3> stall_seconds;  // of a save; memory, peer, disk
  double repair_seconds = 0;                           // until a lost node is back
};

/// The rate of a rare event.
struct Rate {
  size_t count = 0;
  double observed_seconds = 0;
  bool measured() const { return count >= kFailuresMin; }
  /// Mean seconds between two events; meaningful when measured().
  double mean_seconds() const { return observed_seconds / static_cast<double>(count); }
  /// Lower bound of the mean with 95 % confidence. Defined even when no event was observed.
  double least_mean_seconds() const;
};

struct TierAdvice {
  Tier tier = Tier::kMemory;
  Rate failures;                           // that this tier protects from
  std::optional<double> interval_seconds;  // recommended; 0: as often as the tier can take versions
  std::optional<uint64_t> interval_steps;
  std::string why_not;  // without an interval
};

struct RunAdvice {
  double observed_seconds = 0;
  double down_seconds = 0;   // from failures to the first new version after them
  double again_seconds = 0;  // training lost steps again, as far as known
  bool again_unknown = false;
  /// Share of the time in which training made progress.
  std::optional<double> ettr;
  Rate failures;
  std::optional<double> recover_median_seconds;
  std::optional<double> recover_worst_seconds;
  std::array<TierAdvice, 3> tiers;
  /// Expected with the recommended interval at tier memory.
  std::optional<double> expected_ettr;
  Rate node_losses;
  /// Spare nodes that suffice during 99 % of repairs. While the rate is not measured, computed from
  /// its upper bound with 95 % confidence.
  uint32_t spares = 0;
};

RunAdvice Advise(const ObservedRun& run);

/// Returns the interval with the least loss when a save costs `stall_seconds` and a failure happens
/// every `mean_seconds`: Young's first-order formula with Daly's higher-order terms.
double BestInterval(double stall_seconds, double mean_seconds);
/// Returns the share of productive time with an interval (first order).
double ExpectedEttr(double stall_seconds, double interval_seconds, double mean_seconds,
                    double recover_seconds);
/// Returns the smallest k that a Poisson variable exceeds with a probability of at most
/// 1 - `quantile`.
uint32_t PoissonQuantile(double mean, double quantile);

}  // namespace holdfast::cli
