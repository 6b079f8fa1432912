#include "coordinator/view/goodput.h"

#include <gmock/gmock.h>

namespace holdfast::view {
namespace {
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kStart = 1'700'000'000 * kSecond;

/// A failure `at_s` after the start that was detected, stopped, restored and over after these
/// seconds; -1: not yet.
coordinator::Incident Failure(int64_t at_s, int64_t stop_s, int64_t restore_s, int64_t first_s,
                              int64_t lost_steps) {
  coordinator::Incident incident;
  incident.set_wall_nanos(kStart + at_s * kSecond);
  incident.set_detect_ms(500);
  incident.set_decide_ms(600);
  const auto ms = [](int64_t seconds) { return seconds < 0 ? -1 : seconds * 1000; };
  incident.set_stop_ms(ms(stop_s));
  incident.set_restore_ms(ms(restore_s));
  incident.set_first_step_ms(ms(first_s));
  incident.set_lost_steps(lost_steps);
  incident.set_state(first_s < 0 ? "open" : "recovered");
  return incident;
}

GoodputWindow Window(int64_t until_s) { return {kStart, kStart + until_s * kSecond, 2.0}; }

TEST(Goodput, AScriptedRunIsAccountedForExactly) {
  // 1000 s: 3 s until workers ended, 4 s restore, 5 s until the first step, 10 steps of 2 s again.
  const Goodput seen = Measure({Failure(100, 3, 7, 12, 10)}, Window(1000));
  EXPECT_EQ(seen.observed_ms, 1'000'000);
  EXPECT_EQ(seen.infrastructure_recovery_ms, 3'000);
  EXPECT_EQ(seen.checkpoint_restore_ms, 4'000);
  EXPECT_EQ(seen.program_startup_ms, 5'000);
  EXPECT_EQ(seen.wasted_progress_ms, 20'000);
  EXPECT_EQ(seen.productive_ms, 968'000);
  EXPECT_DOUBLE_EQ(GoodputJson(seen)["ettr"].get<double>(), 0.968);
}

TEST(Goodput, OverlappingFailuresCountOnce) {
  const Goodput seen =
      Measure({Failure(104, 3, 7, 12, 0), Failure(100, 3, 7, 12, 0)}, Window(1000));
  EXPECT_EQ(seen.observed_ms - seen.productive_ms, 16'000) << "from 100 s to 116 s";
}

TEST(Goodput, AnOpenFailureLastsUntilNow) {
  const Goodput seen = Measure({Failure(900, 3, -1, -1, -1)}, Window(1000));
  EXPECT_EQ(seen.infrastructure_recovery_ms, 3'000);
  EXPECT_EQ(seen.checkpoint_restore_ms, 97'000);
  EXPECT_EQ(seen.productive_ms, 900'000);
}

TEST(Goodput, PlacingIsRecoveryOfTheInfrastructure) {
  coordinator::Incident failure = Failure(100, 3, 9, 12, 0);
  failure.set_place_ms(5'000);
  const Goodput over = Measure({failure}, Window(1000));
  EXPECT_EQ(over.infrastructure_recovery_ms, 5'000);
  EXPECT_EQ(over.checkpoint_restore_ms, 4'000);
  coordinator::Incident open = Failure(900, 3, -1, -1, -1);
  open.set_place_ms(-1);
  EXPECT_EQ(Measure({open}, Window(1000)).infrastructure_recovery_ms, 100'000);
  open.set_place_ms(5'000);
  EXPECT_EQ(Measure({open}, Window(1000)).infrastructure_recovery_ms, 5'000);
  EXPECT_EQ(Measure({open}, Window(1000)).checkpoint_restore_ms, 95'000);
}

TEST(Goodput, OnlyThePartInTheWindowCounts) {
  const Goodput seen = Measure({Failure(-6, 3, 7, 12, 10)}, Window(100));
  EXPECT_EQ(seen.infrastructure_recovery_ms, 0);
  EXPECT_EQ(seen.checkpoint_restore_ms, 1'000);
  EXPECT_EQ(seen.program_startup_ms, 5'000);
}

TEST(Goodput, UnknownLossesAreMarked) {
  EXPECT_TRUE(Measure({Failure(10, 3, 7, 12, -1)}, Window(100)).wasted_unknown);
  GoodputWindow window = Window(100);
  window.step_seconds.reset();
  EXPECT_TRUE(Measure({Failure(10, 3, 7, 12, 5)}, window).wasted_unknown);
  EXPECT_FALSE(Measure({Failure(10, 3, 7, 12, 0)}, window).wasted_unknown);
}

TEST(Goodput, ASuspicionWithoutConsequencesCostsNothing) {
  coordinator::Incident noted = Failure(10, -1, -1, -1, -1);
  noted.set_state("noted");
  EXPECT_EQ(Measure({noted}, Window(100)).productive_ms, 100'000);
}

TEST(Goodput, ClocksThatGoBackAndEmptyWindowsAreHarmless) {
  EXPECT_EQ(Measure({Failure(10, 3, 7, 12, 0)}, Window(-5)).observed_ms, 0);
  EXPECT_TRUE(GoodputJson(Measure({}, Window(0)))["ettr"].is_null());
  EXPECT_EQ(Measure({Failure(10, 7, 3, 2, 0)}, Window(100)).productive_ms, 93'000);
}
}  // namespace
}  // namespace holdfast::view
