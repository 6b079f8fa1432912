#include "agent/peers/pacer.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/clock.h"
#include "base/random.h"

namespace holdfast::agent {
namespace {
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kUnit = 1 << 20;

/// Takes `bytes` and waits for the returned times on the simulated clock.
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
  EXPECT_EQ(pacer.TryTake(1ULL << 40), Clock::Duration::zero());
}

TEST(PacerTest, ABurstIsSentImmediatelyThenTheRateApplies) {
  ManualClock clock;
  Pacer pacer({.rate_bytes_per_s = 10 * kUnit, .burst_bytes = 7 * kUnit / 2}, clock);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
  const Clock::Duration wait = pacer.TryTake(kUnit);
  EXPECT_NEAR(SecondsOf(wait), 0.05, 1e-6) << "the time of the overdrawn half unit";
  EXPECT_EQ(pacer.TryTake(kUnit), wait) << "a refusal takes nothing";
  clock.Advance(wait - std::chrono::microseconds(1));
  EXPECT_NE(pacer.TryTake(kUnit), Clock::Duration::zero());
  clock.Advance(std::chrono::microseconds(1));
  EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
}

TEST(PacerTest, SendsExactlyTheRateOverAnyTime) {
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
      // A sender that always has data loses the bytes of one nanosecond per wait, by rounding.
      ASSERT_GE(sent + 12.0 * (i + 1), allowed) << "round " << round;
    }
  }
}

TEST(PacerTest, ALongPauseAllowsNoMoreThanTheBurst) {
  ManualClock clock;
  Pacer pacer({.rate_bytes_per_s = kUnit, .burst_bytes = 4 * kUnit}, clock);
  for (int i = 0; i < 4; ++i) Take(pacer, clock, kUnit);
  clock.Advance(std::chrono::hours(24));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
  EXPECT_NE(pacer.TryTake(kUnit), Clock::Duration::zero());
}

TEST(PacerTest, WhileBusyTheBusyRateAppliesAndEarlierTimeKeepsItsRate) {
  ManualClock clock;
  Pacer pacer({.rate_bytes_per_s = 100 * kUnit,
               .busy_rate_bytes_per_s = kUnit,
               .burst_bytes = 1,
               .yield_max = std::chrono::hours(1)},
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
  // Half a second at each rate: the change does not apply to the time before it.
  ManualClock other;
  Pacer second({.rate_bytes_per_s = 2 * kUnit,
                .busy_rate_bytes_per_s = 4 * kUnit,
                .burst_bytes = 100 * kUnit,
                .yield_max = std::chrono::hours(1)},
               other);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(second.TryTake(kUnit), Clock::Duration::zero());
  other.Advance(milliseconds(500));
  second.SetBusy(true);
  other.Advance(milliseconds(500));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(second.TryTake(kUnit), Clock::Duration::zero()) << i;
  EXPECT_NE(second.TryTake(kUnit), Clock::Duration::zero());
}

TEST(PacerTest, WithoutAYieldBudgetBusyHasNoEffect) {
  ManualClock clock;
  Pacer pacer({.rate_bytes_per_s = kUnit, .burst_bytes = 1, .yield_max = {}}, clock);
  EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
  const Clock::Duration wait = pacer.TryTake(kUnit);
  pacer.SetBusy(true);
  EXPECT_EQ(pacer.TryTake(kUnit), wait);
  EXPECT_EQ(pacer.yielded(), Clock::Duration::zero());
}

TEST(PacerTest, NothingIsSentWhileBusyAndEverythingAfter) {
  ManualClock clock;
  Pacer pacer({.yield_max = milliseconds(100)}, clock);
  pacer.SetBusy(true);
  EXPECT_EQ(pacer.TryTake(kUnit), milliseconds(100));
  clock.Advance(milliseconds(30));
  EXPECT_EQ(pacer.TryTake(kUnit), milliseconds(70));
  clock.Advance(milliseconds(20));
  pacer.SetBusy(false);
  EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
  EXPECT_EQ(pacer.yielded(), milliseconds(50));
  // Quiet time refills the yield budget, up to its maximum.
  clock.Advance(milliseconds(20));
  pacer.SetBusy(true);
  EXPECT_EQ(pacer.TryTake(kUnit), milliseconds(70));
  pacer.SetBusy(false);
  clock.Advance(seconds(10));
  pacer.SetBusy(true);
  EXPECT_EQ(pacer.TryTake(kUnit), milliseconds(100));
}

TEST(PacerTest, TimeWithoutWaitingSpendsNoYieldBudget) {
  ManualClock clock;
  Pacer pacer({.yield_max = milliseconds(100)}, clock);
  pacer.SetBusy(true);
  EXPECT_EQ(pacer.TryTake(kUnit), milliseconds(100));
  clock.Advance(seconds(10));  // the sender stopped waiting after its 100 ms
  EXPECT_EQ(pacer.TryTake(kUnit), milliseconds(100));
  EXPECT_EQ(pacer.yielded(), milliseconds(100));
}

TEST(PacerTest, AnEndlessHintCostsHalfOfTheTime) {
  // A unit takes 1 ms to send. The sender first waits until the budget is spent. After that it
  // waits half of the time.
  ManualClock clock;
  Pacer pacer({.yield_max = milliseconds(100)}, clock);
  pacer.SetBusy(true);
  const Clock::TimePoint start = clock.Now();
  uint64_t units = 0;
  while (clock.Now() - start < seconds(10)) {
    Take(pacer, clock, kUnit);
    clock.Advance(milliseconds(1));
    ++units;
  }
  EXPECT_NEAR(static_cast<double>(units), 4950, 5);
  EXPECT_NEAR(SecondsOf(pacer.yielded()), 5.05, 0.01);
}

TEST(PacerTest, WaitsThatEndLateDoNotStarveTheSender) {
  // Every wait takes longer than returned, as real waits do.
  ManualClock clock;
  Pacer pacer({.yield_max = milliseconds(100)}, clock);
  pacer.SetBusy(true);
  const Clock::TimePoint start = clock.Now();
  for (int units = 0; units < 10;) {
    const Clock::Duration wait = pacer.TryTake(kUnit);
    if (wait == Clock::Duration::zero()) {
      ++units;
      continue;
    }
    ASSERT_LT(clock.Now() - start, seconds(1)) << "after " << units << " units";
    clock.Advance(std::min<Clock::Duration>(wait, milliseconds(1)) + std::chrono::microseconds(80));
  }
}

TEST(PacerTest, ManyShortCollectivesCostHalfOfTheTimeAtMost) {
  Random random(7);
  for (int round = 0; round < 20; ++round) {
    ManualClock clock;
    const milliseconds budget(random.Below(500));
    Pacer pacer({.busy_rate_bytes_per_s = random.Below(2) * (kUnit / 100), .yield_max = budget},
                clock);
    const Clock::TimePoint start = clock.Now();
    for (int i = 0; i < 3000; ++i) {
      pacer.SetBusy(random.Below(10) != 0);
      const Clock::Duration wait = pacer.TryTake(kUnit);
      const Clock::Duration poll = std::chrono::microseconds(1 + random.Below(2000));
      clock.Advance(wait == Clock::Duration::zero() ? poll : std::min(wait, poll));
    }
    const Clock::Duration passed = clock.Now() - start;
    pacer.SetBusy(false);
    EXPECT_LE(2 * pacer.yielded(), passed + budget) << "round " << round;
    if (budget.count() > 0) {
      EXPECT_GT(8 * pacer.yielded(), passed) << "round " << round;
    }
  }
}

TEST(PacerTest, ABusyRateAloneLimitsBusyTimesOnly) {
  ManualClock clock;
  Pacer pacer(
      {.busy_rate_bytes_per_s = kUnit, .burst_bytes = kUnit, .yield_max = std::chrono::hours(1)},
      clock);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
  pacer.SetBusy(true);
  EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
  EXPECT_NE(pacer.TryTake(kUnit), Clock::Duration::zero());
  pacer.SetBusy(false);
  EXPECT_EQ(pacer.TryTake(kUnit), Clock::Duration::zero());
}

TEST(PacerTest, ShortUnitsDoNotStarveLongOnes) {
  ManualClock clock;
  Pacer pacer({.rate_bytes_per_s = kUnit, .burst_bytes = kUnit}, clock);
  for (int i = 0; i < 3; ++i) Take(pacer, clock, kUnit);
  const Clock::Duration for_long = pacer.TryTake(kUnit);
  EXPECT_EQ(pacer.TryTake(1), for_long) << "both wait for the same time";
}

}  // namespace
}  // namespace holdfast::agent
