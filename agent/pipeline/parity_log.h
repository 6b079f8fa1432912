#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/status.h"

namespace holdfast::agent {

/// Limits the log lines about a job's versions without parity. When steps are faster than the
/// peers, many versions are superseded. At most one line a minute is logged, with the number of
/// these versions. Thread-compatible.
class ParityLog {
 public:
  struct Line {
    uint64_t not_made = 0;  // versions without parity since the last line
    uint64_t made = 0;      // versions with parity since the last line
  };

  /// Counts a version without parity. Returns a line when one is due.
  std::optional<Line> CountNotMade(Clock::TimePoint now) {
    ++line_.not_made;
    if (last_ && now - *last_ < kPause) return std::nullopt;
    last_ = now;
    const Line line = line_;
    line_ = {};
    return line;
  }
  void CountMade() { ++line_.made; }

 private:
  static constexpr std::chrono::minutes kPause{1};
  Line line_;
  std::optional<Clock::TimePoint> last_;
};

}  // namespace holdfast::agent
