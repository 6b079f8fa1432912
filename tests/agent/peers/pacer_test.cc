#include "agent/peers/pacer.h"

#include <gtest/gtest.h>

#include <chrono>

#include "storage/base/clock.h"
#include "storage/base/random.h"

namespace holdfast::agent {
namespace {
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kUnit = 1 << 20;

/// Waits as long as it is told to, on the simulated clock.
void Take(Pacer& pacer, ManualClock& clock, uint64_t bytes) {
  for (;;) {
    const Clock::Duration wait = pacer.TryTake(bytes);
    if (wait == Clock::Duration::zero()) return;
    ASSERT_GT(wait, Clock::Duration::zero());
    clock.Advance(wait);
  }
}

double SecondsOf(Clock::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

TEST(PacerTest, WithoutARateNothingWaits) {
  ManualClock clock;
  Pacer pacer({}, clock);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
  pacer.SetBusy(true);
  EXPECT_EQ(pacer.TryTake(1ULL << 40), Clock::Duration::zero());
}

TEST(PacerTest, ABurstGoesAtOnceThenTheRateHolds) {
  ManualClock clock;
  Pacer pacer({.rate_bytes_per_s = 10 * kUnit, .burst_bytes = 7 * kUnit / 2}, clock);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
  const Clock::Duration wait = pacer.TryTake(kUnit);
  EXPECT_NEAR(SecondsOf(wait), 0.05, 1e-6) << "the half unit that was overdrawn";
  EXPECT_EQ(pacer.TryTake(kUnit), wait) << "a refusal takes nothing";
  clock.Advance(wait - std::chrono::microseconds(1));
  EXPECT_NE(pacer.TryTake(kUnit), Clock::Duration::zero());
  clock.Advance(std::chrono::microseconds(1));
  EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
}

TEST(PacerTest, OverAnyTimeItSendsTheRateAndNotMore) {
  Random random(3);
  for (int round = 0; round < 50; ++round) {
    const uint64_t rate = 1000 + random.Below(1ULL << 33);
    const uint64_t burst = 1 + random.Below(8 * kUnit);
    ManualClock clock;
    Pacer pacer({.rate_bytes_per_s = rate, .burst_bytes = burst}, clock);
    const Clock::TimePoint start = clock.Now();
    double sent = 0;
    for (int i = 0; i < 500; ++i) {
      const uint64_t bytes = 1 + random.Below(kUnit);
      Take(pacer, clock, bytes);
      sent += static_cast<double>(bytes);
      const double allowed = static_cast<double>(rate) * SecondsOf(clock.Now() - start);
      ASSERT_LE(sent, allowed + static_cast<double>(burst + kUnit) + 1) << "round " << round;
      // A sender that always has more to send loses a nanosecond's bytes a wait, by rounding.
      ASSERT_GE(sent + 12.0 * (i + 1), allowed) << "round " << round;
    }
  }
}

TEST(PacerTest, ALongPauseSavesUpNoMoreThanTheBurst) {
  ManualClock clock;
  Pacer pacer({.rate_bytes_per_s = kUnit, .burst_bytes = 4 * kUnit}, clock);
  for (int i = 0; i < 4; ++i) Take(pacer, clock, kUnit);
  clock.Advance(std::chrono::hours(24));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
  EXPECT_NE(pacer.TryTake(kUnit), Clock::Duration::zero());
}

TEST(PacerTest, WhileBusyTheBusyRateHoldsAndTimeCountsAtTheRateItPassedAt) {
  ManualClock clock;
  Pacer pacer({.rate_bytes_per_s = 100 * kUnit, .busy_rate_bytes_per_s = kUnit, .burst_bytes = 1},
              clock);
  const auto sent_in = [&](Clock::Duration time) {
    const Clock::TimePoint end = clock.Now() + time;
    uint64_t units = 0;
    for (;;) {
      const Clock::Duration wait = pacer.TryTake(kUnit);
      if (wait == Clock::Duration::zero()) {
        ++units;
      } else if (clock.Now() + wait > end) {
        clock.Advance(end - clock.Now());
        return units;
      } else {
        clock.Advance(wait);
      }
    }
  };
  EXPECT_NEAR(static_cast<double>(sent_in(seconds(10))), 1000, 2);
  pacer.SetBusy(true);
  EXPECT_NEAR(static_cast<double>(sent_in(seconds(10))), 10, 2);
  pacer.SetBusy(false);
  EXPECT_NEAR(static_cast<double>(sent_in(seconds(10))), 1000, 2);
  // Half a second at each rate: the change in between does not rewrite what has passed.
  ManualClock other;
  Pacer second({.rate_bytes_per_s = 2 * kUnit,
                .busy_rate_bytes_per_s = 4 * kUnit,
                .burst_bytes = 100 * kUnit},
               other);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(second.TryTake(kUnit), Clock::Duration::zero());
  other.Advance(milliseconds(500));
  second.SetBusy(true);
  other.Advance(milliseconds(500));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(second.TryTake(kUnit), Clock::Duration::zero()) << i;
  EXPECT_NE(second.TryTake(kUnit), Clock::Duration::zero());
}

TEST(PacerTest, WithoutABusyRateBusyChangesNothing) {
  ManualClock clock;
  Pacer pacer({.rate_bytes_per_s = kUnit, .burst_bytes = 1}, clock);
  EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
  const Clock::Duration wait = pacer.TryTake(kUnit);
  pacer.SetBusy(true);
  EXPECT_EQ(pacer.TryTake(kUnit), wait);
}

TEST(PacerTest, ABusyRateAlonePacesBusyTimesOnly) {
  ManualClock clock;
  Pacer pacer({.busy_rate_bytes_per_s = kUnit, .burst_bytes = kUnit}, clock);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
  pacer.SetBusy(true);
  EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
  EXPECT_NE(pacer.TryTake(kUnit), Clock::Duration::zero());
  pacer.SetBusy(false);
  EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
}

TEST(PacerTest, LongUnitsDoNotStarveBesideShortOnes) {
  ManualClock clock;
  Pacer pacer({.rate_bytes_per_s = kUnit, .burst_bytes = kUnit}, clock);
  for (int i = 0; i < 3; ++i) Take(pacer, clock, kUnit);
  const Clock::Duration for_long = pacer.TryTake(kUnit);
  EXPECT_EQ(pacer.TryTake(1), for_long) << "both wait for the same instant";
}

}  // namespace
}  // namespace holdfast::agent
