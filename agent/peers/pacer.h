#pragma once

#include <chrono>
#include <cstdint>

#include "storage/base/clock.h"

namespace holdfast::agent {

struct PacerOptions {
  uint64_t rate_bytes_per_s = 0;       // 0: not paced
  uint64_t busy_rate_bytes_per_s = 0;  // while busy; 0: nothing is sent then
  uint64_t burst_bytes = 4ULL << 20;   // sent at once after a pause
  /// How long it yields in one go; 0: busy changes nothing.
  Clock::Duration yield_max = std::chrono::milliseconds(200);
};

/// A token bucket: over any time T it lets through at most rate·T + burst + one unit. A unit may
/// begin whenever anything is in the bucket and may overdraw it, so that long units do not starve
/// beside short ones.
///
/// While busy it yields: the busy rate holds. Whatever it is told, it waits so for at most half of
/// any time plus yield_max: waiting uses its patience up, all other time gives it back, and
/// without patience the rate of quiet times holds. Pure but for the clock; thread-compatible.
class Pacer {
 public:
  /// `clock` outlives it.
  Pacer(const PacerOptions& options, const Clock& clock);

  /// Takes `bytes` and returns 0, or takes nothing and returns how long at most there is nothing to
  /// take. Ask again then, or when SetBusy changes the rate.
  Clock::Duration TryTake(uint64_t bytes);

  /// Busy: the trainers' own traffic runs and goes first.
  void SetBusy(bool busy);

  /// Time that was waited because of SetBusy, so far.
  Clock::Duration yielded() const { return yielded_; }

 private:
  bool Yields() const { return busy_ && patience_ > Clock::Duration::zero(); }
  Clock::Duration EmptyFor(uint64_t rate) const;
  void Refill();

  const PacerOptions options_;
  const double burst_;
  const Clock& clock_;
  bool busy_ = false;
  double tokens_;  // bytes; below 0: overdrawn
  Clock::TimePoint refilled_;
  Clock::Duration patience_;
  Clock::Duration told_to_wait_{};  // by the last TryTake
  Clock::Duration yielded_{};
};

}  // namespace holdfast::agent
