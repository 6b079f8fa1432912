#pragma once

#include <cstdint>
#include <optional>

#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace holdfast::agent {

/// Which of a job's versions without parity are worth a line. Versions are passed over all the time
/// when steps are faster than the peers: that is one line a minute at most, with the count.
/// Thread-compatible.
class ParityLog {
 public:
  struct Line {
    uint64_t not_made = 0;  // since the last line
    uint64_t made = 0;
  };

  /// A line when it is time for one.
  std::optional<Line> NotMade(Clock::TimePoint now) {
    ++line_.not_made;
    if (last_ && now - *last_ < kPause) return std::nullopt;
    last_ = now;
    const Line line = line_;
    line_ = {};
    return line;
  }
  void Made() { ++line_.made; }

 private:
  static constexpr std::chrono::minutes kPause{1};
  Line line_;
  std::optional<Clock::TimePoint> last_;
};

}  // namespace holdfast::agent
