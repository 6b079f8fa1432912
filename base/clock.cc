#include "base/clock.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "base/scheduler.h"

namespace holdfast {
namespace {
class RealClock : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
  int64_t WallNanos() const override {
    return std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  void SleepFor(Duration duration) override { std::this_thread::sleep_for(duration); }
};
}  // namespace

Clock& Clock::Real() {
  // A simulated system has virtual time only.
  if (Scheduler::Installed() != nullptr) std::abort();
  static RealClock clock;
  return clock;
}

std::string FormatUtc(int64_t wall_nanos) {
  time_t seconds = wall_nanos / 1'000'000'000;
  int millis = static_cast<int>(wall_nanos / 1'000'000 % 1000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[80];
  std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", parts.tm_year + 1900,
                parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, millis);
  return text;
}

}  // namespace holdfast
