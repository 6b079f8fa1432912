#pragma once

#include <cstdint>

#include "storage/base/clock.h"

namespace holdfast::agent {

struct PacerOptions {
  uint64_t rate_bytes_per_s = 0;       // 0: not paced
  uint64_t busy_rate_bytes_per_s = 0;  // while busy; 0: busy changes nothing
  uint64_t burst_bytes = 4ULL << 20;   // sent at once after a pause
};

/// A token bucket: over any time T it lets through at most rate·T + burst + one unit. A unit may
/// begin whenever anything is in the bucket and may overdraw it, so that long units do not starve
/// beside short ones. Pure but for the clock; thread-compatible.
class Pacer {
 public:
  /// `clock` outlives it.
  Pacer(const PacerOptions& options, const Clock& clock);

  /// Takes `bytes` and returns 0, or takes nothing and returns how long the bucket stays empty at
  /// the present rate. Ask again then, or when SetBusy changes the rate.
  Clock::Duration TryTake(uint64_t bytes);

  /// Busy: the trainer's own traffic runs and goes first.
  void SetBusy(bool busy);

 private:
  uint64_t rate() const;
  void Refill();

  const PacerOptions options_;
  const double burst_;
  const Clock& clock_;
  bool busy_ = false;
  double tokens_;  // bytes; below 0: overdrawn
  Clock::TimePoint refilled_;
};

}  // namespace holdfast::agent
