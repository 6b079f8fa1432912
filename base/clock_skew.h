#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "base/clock.h"

namespace holdfast {

/// Clocks of a cluster that differ by more are a finding.
inline constexpr int64_t kClockSkewMaxNanos = 1'000'000'000;

/// How far this machine's clock is ahead of another machine's. Only for display.
struct ClockSkew {
  int64_t nanos = 0;
  int64_t uncertainty_nanos = 0;

  /// Returns the skew that one call shows: `theirs` is the other clock at some time of the call,
  /// which began at `begin` and has just ended. A slow call only makes the result less certain.
  static ClockSkew OfCall(const Clock& clock, Clock::TimePoint begin, int64_t theirs) {
    const int64_t half = (clock.Now() - begin).count() / 2;
    return {clock.WallNanos() - half - theirs, half};
  }
  /// Returns the least skew, without its sign, that the call proves.
  int64_t least_nanos() const { return std::max<int64_t>(std::abs(nanos) - uncertainty_nanos, 0); }
  /// Returns the greatest skew, without its sign, that the call allows.
  int64_t most_nanos() const { return std::abs(nanos) + uncertainty_nanos; }
};

}  // namespace holdfast
