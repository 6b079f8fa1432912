#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/json/values.h"
#include "coordinator/api/coordinator.pb.h"

namespace holdfast::view {

/// Where the time of a job went, in milliseconds. The names of the kinds are those of Google's
/// goodput library, as far as the coordinator can measure them.
struct Goodput {
  int64_t observed_ms = 0;
  int64_t productive_ms = 0;               // the rest
  int64_t infrastructure_recovery_ms = 0;  // from the last sign of health until new workers run
  int64_t checkpoint_restore_ms = 0;       // until the version is restored
  int64_t program_startup_ms = 0;          // until the first step afterwards
  int64_t wasted_progress_ms = 0;          // steps that were trained again
  bool wasted_unknown = false;             // of some failure
};

/// The part of a job's time that is examined.
struct GoodputWindow {
  int64_t from_wall_nanos = 0;
  int64_t until_wall_nanos = 0;
  std::optional<double> step_seconds;  // usual duration of a step
};

/// Sums up the incidents of one job that stopped its training. Times that overlap count once.
Goodput Measure(const std::vector<coordinator::Incident>& incidents, const GoodputWindow& window);

/// The JSON form, with the share of productive time (ETTR), or null if nothing was observed.
Json GoodputJson(const Goodput& goodput);

}  // namespace holdfast::view
