#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "storage/base/ids.h"

// The arithmetic of `holdfast advise`; docs/advice.md explains it. Pure, and silent where too
// little was seen: a number that is not there is not known.

namespace holdfast::cli {

/// So many failures at least are needed before a rate is called measured.
inline constexpr size_t kFailuresLeast = 3;

/// Something that stopped a job's training.
struct FailureSeen {
  int64_t wall_nanos = 0;     // the last sign of health
  int64_t recovered_ms = -1;  // from then to the first new version; -1: not yet
  int64_t lost_steps = -1;    // trained again; -1: not known
  bool node_lost = false;     // with the memory of its node
};

/// What is known of a run.
struct RunSeen {
  int64_t started_wall_nanos = 0;
  int64_t until_wall_nanos = 0;  // now, or its last version when it is over
  std::vector<FailureSeen> failures;
  bool has_peers = false;  // parity groups: the disk is not what a lost node falls back on
  std::optional<double> step_seconds;
  std::optional<double> disk_every_seconds;            // between versions on disk
  std::array<std::optional<double>, 3> stall_seconds;  // of a save; memory, peer, disk
  double repair_seconds = 0;                           // until a lost node is back
};

/// How often something happens that is seen now and then.
struct Rate {
  size_t count = 0;
  double observed_seconds = 0;
  bool measured() const { return count >= kFailuresLeast; }
  /// Mean seconds between two; meaningful when measured.
  double mean_seconds() const { return observed_seconds / static_cast<double>(count); }
  /// With 95 % confidence the mean is at least this; also when nothing was seen.
  double least_mean_seconds() const;
};

struct TierAdvice {
  Tier tier = Tier::kMemory;
  Rate failures;                           // that this tier is there for
  std::optional<double> interval_seconds;  // recommended; 0: as often as the tier follows
  std::optional<uint64_t> interval_steps;
  std::string why_not;  // without an interval
};

struct RunAdvice {
  double observed_seconds = 0;
  double down_seconds = 0;   // from failures to the first new version after them
  double again_seconds = 0;  // training lost steps again, as far as it is known
  bool again_unknown = false;
  /// Share of the time that brought training forward.
  std::optional<double> ettr;
  Rate failures;
  std::optional<double> recover_median_seconds;
  std::optional<double> recover_worst_seconds;
  std::array<TierAdvice, 3> tiers;
  /// To be expected with the recommended interval at tier memory.
  std::optional<double> expected_ettr;
  Rate node_losses;
  /// Spare nodes that suffice for 99 % of repair times; from the worst rate that 95 % confidence
  /// leaves while the rate is not measured.
  uint32_t spares = 0;
};

RunAdvice Advise(const RunSeen& run);

/// The interval that loses least when a save costs `stall` and a failure comes every `mean`:
/// Young's first order with Daly's higher-order terms.
double BestInterval(double stall_seconds, double mean_seconds);
/// The share of productive time with an interval (first order).
double ExpectedEttr(double stall_seconds, double interval_seconds, double mean_seconds,
                    double recover_seconds);
/// The smallest k that a Poisson variable exceeds with a probability of at most 1 - `quantile`.
uint32_t PoissonQuantile(double mean, double quantile);

}  // namespace holdfast::cli
