#pragma once

#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace holdfast::agent {

struct PacerOptions {
  uint64_t rate_bytes_per_s = 0;       // 0: unlimited
  uint64_t busy_rate_bytes_per_s = 0;  // while busy; 0: no data is sent
  uint64_t burst_bytes = 4ULL << 20;   // may be sent without waiting after a pause
  /// Longest continuous yielding; 0: busy has no effect.
  Clock::Duration yield_max = std::chrono::milliseconds(200);
};

/// A token bucket: over any time T it admits at most rate·T + burst + one unit. A unit may start
/// whenever the bucket is not empty and may overdraw it, so that short units do not starve long
/// ones.
///
/// While busy the pacer yields: the busy rate applies. Yielding is bounded to half of any time plus
/// yield_max: waiting spends a budget, which refills over all other time. Without a budget the
/// normal rate applies. Pure except for the clock; thread-compatible.
class Pacer {
 public:
  /// `clock` must outlive the pacer.
  Pacer(const PacerOptions& options, const Clock& clock);

  /// Takes `bytes` and returns 0, or takes nothing and returns the longest time until a retry can
  /// succeed. Retry then, or when SetBusy() changes the rate.
  Clock::Duration TryTake(uint64_t bytes);

  /// Busy: collectives of the trainers run and have priority.
  void SetBusy(bool busy);

  /// Returns the total time that senders have waited because of SetBusy().
  Clock::Duration yielded() const { return yielded_; }

 private:
  bool Yields() const { return busy_ && yield_budget_ > Clock::Duration::zero(); }
  Clock::Duration EmptyFor(uint64_t rate) const;
  void Refill();

  const PacerOptions options_;
  const double burst_;
  const Clock& clock_;
  bool busy_ = false;
  double tokens_;  // bytes; below 0: overdrawn
  Clock::TimePoint refilled_;
  Clock::Duration yield_budget_;
  Clock::Duration returned_wait_{};  // of the last TryTake() while yielding
  Clock::Duration yielded_{};
};

}  // namespace holdfast::agent
