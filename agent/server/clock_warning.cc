#include "agent/server/clock_warning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace holdfast::agent {
namespace {
// Part of the skew by which it must change for a new text.
constexpr int64_t kChangeDivisor = 2;
}  // namespace

bool ClockWarning::Observe(ClockSkew skew) {
  if (skew.least_nanos() <= kClockSkewMaxNanos) {
    if (!shown_nanos_ || skew.most_nanos() > kClockSkewMaxNanos) return false;
    shown_nanos_.reset();
    text_.clear();
    return true;
  }
  if (shown_nanos_) {
    const int64_t change = std::abs(skew.nanos - *shown_nanos_) - skew.uncertainty_nanos;
    if (change <= std::max(kClockSkewMaxNanos, std::abs(*shown_nanos_) / kChangeDivisor)) {
      return false;
    }
  }
  shown_nanos_ = skew.nanos;
  text_ = fmt::format(
      "the clock is {:.1f} s {} the coordinator's, so times of this node are wrong: start chrony "
      "or systemd-timesyncd on both machines",
      static_cast<double>(std::abs(skew.nanos)) / 1e9, skew.nanos > 0 ? "ahead of" : "behind");
  return true;
}

}  // namespace holdfast::agent
