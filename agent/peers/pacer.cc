#include "agent/peers/pacer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace holdfast::agent {
namespace {
// Longer waits are cut: those who wait ask again.
constexpr double kWaitMaxSeconds = 3600;
}  // namespace

Pacer::Pacer(const PacerOptions& options, const Clock& clock)
    : options_(options),
      burst_(static_cast<double>(std::max<uint64_t>(options.burst_bytes, 1))),
      clock_(clock),
      tokens_(burst_),
      refilled_(clock.Now()),
      patience_(options.yield_max) {}

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
  // Nobody waits longer than told: what goes beyond was no waiting.
  const Clock::Duration waited = yields ? std::min(passed, told_to_wait_) : Clock::Duration::zero();
  yielded_ += waited;
  patience_ = std::clamp(patience_ + passed - 2 * waited, Clock::Duration::zero(),
                         Clock::Duration(options_.yield_max));
}

Clock::Duration Pacer::EmptyFor(uint64_t rate) const {
  // One byte more than the debt, rounded up: after so long there is something in the bucket.
  const double seconds = std::min((1 - tokens_) / static_cast<double>(rate), kWaitMaxSeconds);
  return Clock::Duration(static_cast<int64_t>(std::ceil(seconds * 1e9)));
}

Clock::Duration Pacer::TryTake(uint64_t bytes) {
  Refill();
  told_to_wait_ = {};
  if (Yields()) {
    const uint64_t rate = options_.busy_rate_bytes_per_s;
    if (rate == 0 || tokens_ <= 0) {
      told_to_wait_ = rate == 0 ? patience_ : std::min(patience_, EmptyFor(rate));
      return told_to_wait_;
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
  Refill();  // what has passed counts at the rate that it passed at
  busy_ = busy;
}

}  // namespace holdfast::agent
