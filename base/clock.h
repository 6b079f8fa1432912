#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace holdfast {

/// The only source of time. Timeouts use Now() (monotonic); WallNanos() is only for display.
class Clock {
 public:
  using Duration = std::chrono::nanoseconds;
  using TimePoint = std::chrono::steady_clock::time_point;

  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  /// Returns the nanoseconds since 1970 in UTC.
  virtual int64_t WallNanos() const = 0;
  virtual void SleepFor(Duration duration) = 0;

  /// Returns the process's real clock.
  static Clock& Real();
};

/// A clock that moves only in SleepFor() and Advance(). Thread-compatible.
class ManualClock : public Clock {
 public:
  TimePoint Now() const override { return now_; }
  int64_t WallNanos() const override { return now_.time_since_epoch().count(); }
  void SleepFor(Duration duration) override { now_ += duration; }
  void Advance(Duration duration) { now_ += duration; }

 private:
  TimePoint now_ = TimePoint(std::chrono::hours(1));
};

/// Formats a time as RFC 3339 in UTC with milliseconds, e.g. "2026-01-02T03:04:05.678Z".
std::string FormatUtc(int64_t wall_nanos);

}  // namespace holdfast
