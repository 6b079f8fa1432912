#include "agent/peers/pacer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace holdfast::agent {
namespace {
// Longer waits are cut to this; callers retry after the wait.
constexpr double kWaitMaxSeconds = 3600;
// A caller that comes back later than this after its wait was not waiting all the time.
constexpr std::chrono::milliseconds kLateMax(20);
}  // namespace

Pacer::Pacer(const PacerOptions& options, const Clock& clock)
    : options_(options),
      burst_(static_cast<double>(std::max<uint64_t>(options.burst_bytes, 1))),
      clock_(clock),
      tokens_(burst_),
      refilled_(clock.Now()),
      yield_budget_(options.yield_max) {}

void Pacer::Refill() {
  const Clock::TimePoint now = clock_.Now();
  const Clock::Duration passed = now - refilled_;
  refilled_ = now;
  const bool yields = Yields();
  const uint64_t rate = yields ? options_.busy_rate_bytes_per_s : options_.rate_bytes_per_s;
  if (rate != 0) {
    const double seconds = std::chrono::duration<double>(passed).count();
    tokens_ = std::min(burst_, tokens_ + seconds * static_cast<double>(rate));
  } else if (!yields) {
    tokens_ = burst_;  // unpaced time leaves the bucket full for the paced time after it
  }
  // Count at most the returned delay: callers wait no longer, so any excess was not caused by
  // pacing.
  const Clock::Duration waited =
      yields ? std::min(passed, returned_wait_) : Clock::Duration::zero();
  yielded_ += waited;
  // A wait always takes a little longer than returned. That must not refill the budget, or the
  // budget would never be empty, and data would wait as long as the trainers are busy.
  const Clock::Duration excess = passed - waited;
  const bool late = waited > Clock::Duration::zero() && excess < kLateMax;
  yield_budget_ = std::clamp(yield_budget_ - waited + (late ? Clock::Duration::zero() : excess),
                             Clock::Duration::zero(), Clock::Duration(options_.yield_max));
}

Clock::Duration Pacer::EmptyFor(uint64_t rate) const {
  // One byte more than the debt, rounded up, so that the bucket is not empty after this time.
  const double seconds = std::min((1 - tokens_) / static_cast<double>(rate), kWaitMaxSeconds);
  return Clock::Duration(static_cast<int64_t>(std::ceil(seconds * 1e9)));
}

Clock::Duration Pacer::TryTake(uint64_t bytes) {
  Refill();
  returned_wait_ = {};
  if (Yields()) {
    const uint64_t rate = options_.busy_rate_bytes_per_s;
    if (rate == 0 || tokens_ <= 0) {
      returned_wait_ = rate == 0 ? yield_budget_ : std::min(yield_budget_, EmptyFor(rate));
      return returned_wait_;
    }
  } else if (options_.rate_bytes_per_s == 0) {
    return Clock::Duration::zero();
  } else if (tokens_ <= 0) {
    return EmptyFor(options_.rate_bytes_per_s);
  }
  tokens_ -= static_cast<double>(bytes);
  return Clock::Duration::zero();
}

void Pacer::SetBusy(bool busy) {
  if (busy == busy_) return;
  Refill();  // the time until now counts at the previous rate
  busy_ = busy;
}

}  // namespace holdfast::agent
