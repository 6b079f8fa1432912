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
      refilled_(clock.Now()) {}

uint64_t Pacer::rate() const {
  const bool busy = busy_ && options_.busy_rate_bytes_per_s != 0;
  return busy ? options_.busy_rate_bytes_per_s : options_.rate_bytes_per_s;
}

void Pacer::Refill() {
  const Clock::TimePoint now = clock_.Now();
  const double seconds = std::chrono::duration<double>(now - refilled_).count();
  refilled_ = now;
  // Unpaced time leaves the bucket full for the paced time after it.
  tokens_ =
      rate() == 0 ? burst_ : std::min(burst_, tokens_ + seconds * static_cast<double>(rate()));
}

Clock::Duration Pacer::TryTake(uint64_t bytes) {
  Refill();
  if (rate() == 0) return Clock::Duration::zero();
  if (tokens_ <= 0) {
    // One byte more than the debt, rounded up: after so long there is something in the bucket.
    const double seconds = std::min((1 - tokens_) / static_cast<double>(rate()), kWaitMaxSeconds);
    return Clock::Duration(static_cast<int64_t>(std::ceil(seconds * 1e9)));
  }
  tokens_ -= static_cast<double>(bytes);
  return Clock::Duration::zero();
}

void Pacer::SetBusy(bool busy) {
  Refill();  // what has passed counts at the rate that it passed at
  busy_ = busy;
}

}  // namespace holdfast::agent
