// The arithmetic of `holdfast advise`, checked against tables.

#include "cli/advise/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace holdfast::cli {
namespace {
using testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kStart = 1'000 * kSecond;

TEST(BestInterval, YoungAndDaly) {
  // A third of an hour's mean, a save of 40 ms: Young's 30 s of the large runs with 3.09 h.
  EXPECT_NEAR(BestInterval(0.04, 3.09 * 3600), 29.8, 0.1);
  EXPECT_NEAR(BestInterval(60, 24 * 3600), std::sqrt(2.0 * 60 * 86400), 60) << "first order";
  EXPECT_GT(BestInterval(1, 1000), BestInterval(1, 100)) << "rarer failures, fewer saves";
  EXPECT_LT(BestInterval(1, 1000), BestInterval(4, 1000)) << "costlier saves, fewer saves";
  EXPECT_EQ(BestInterval(10, 5), 5) << "a save that costs more than the time between failures";
}

TEST(BestInterval, HasTheHighestExpectedEttr) {
  for (const double stall : {0.04, 1.0, 30.0}) {
    for (const double mean : {600.0, 11'000.0, 400'000.0}) {
      const double best = BestInterval(stall, mean);
      const double with = ExpectedEttr(stall, best, mean, 0);
      EXPECT_GT(with, ExpectedEttr(stall, best * 2, mean, 0)) << stall << " " << mean;
      EXPECT_GT(with, ExpectedEttr(stall, best / 2, mean, 0)) << stall << " " << mean;
    }
  }
}

TEST(ExpectedEttr, FallsWithTheRecoveryTime) {
  const double mean = 3.09 * 3600;
  const double fast = ExpectedEttr(0.04, 30, mean, 60);
  const double slow = ExpectedEttr(0.04, 30, mean, 120);
  EXPECT_NEAR(fast - slow, 60 / mean, 1e-4);
  EXPECT_EQ(ExpectedEttr(1, 10, 100, 1000), 0) << "never below 0";
}

TEST(PoissonQuantile, Table) {
  struct Case {
    double mean;
    double quantile;
    uint32_t expected;
  };
  // P(X <= k) of a Poisson variable, from its definition.
  for (const Case& with :
       {Case{0, 0.99, 0}, Case{0.01, 0.99, 0}, Case{0.02, 0.99, 1}, Case{1, 0.99, 4},
        Case{1, 0.9, 2}, Case{10, 0.99, 18}, Case{1e9, 0.99, 100'000}}) {
    EXPECT_EQ(PoissonQuantile(with.mean, with.quantile), with.expected) << with.mean;
  }
}

TEST(Rate, LowerBoundFromFewIncidents) {
  const double day = 86'400;
  EXPECT_NEAR((Rate{0, day}.least_mean_seconds()), day / 2.9957, 1) << "the rule of three";
  EXPECT_NEAR((Rate{1, day}.least_mean_seconds()), day / 4.7439, 1);
  // The approximation meets the table: chi-square(0.95, 14) / 2 is 11.842, (0.95, 42) / 2
  // is 29.062.
  EXPECT_NEAR((Rate{6, day}.least_mean_seconds()), day / 11.842, 5);
  EXPECT_NEAR((Rate{20, day}.least_mean_seconds()), day / 29.062, 5);
  EXPECT_FALSE((Rate{2, day}.measured()));
  EXPECT_TRUE((Rate{3, day}.measured()));
  EXPECT_EQ((Rate{4, day}.mean_seconds()), day / 4);
}

/// An hour of a run.
ObservedRun Hour() {
  ObservedRun run;
  run.started_wall_nanos = kStart;
  run.until_wall_nanos = kStart + 3600 * kSecond;
  run.repair_seconds = 3600;
  return run;
}

ObservedFailure At(int64_t second, std::optional<int64_t> recovered_ms,
                   std::optional<int64_t> lost_steps = 0, bool node = false) {
  return {kStart + second * kSecond, recovered_ms, lost_steps, node};
}

TEST(Advise, UnproductiveTimeIsCounted) {
  struct Case {
    const char* what;
    std::vector<ObservedFailure> failures;
    double down;
    double again;
    bool unknown;
  };
  const Case cases[] = {
      {"nothing happened", {}, 0, 0, false},
      {"one failure", {At(600, 36'000)}, 36, 0, false},
      {"with steps lost", {At(600, 36'000, 18)}, 36, 36, false},
      {"two of the same time count once", {At(600, 60'000), At(630, 60'000)}, 90, 0, false},
      {"one within another", {At(600, 60'000), At(610, 10'000)}, 60, 0, false},
      {"still open", {At(3500, std::nullopt)}, 100, 0, false},
      {"what is lost is not known", {At(600, 36'000, std::nullopt)}, 36, 0, true},
  };
  for (const Case& with : cases) {
    ObservedRun run = Hour();
    run.step_seconds = 2;
    run.failures = with.failures;
    const RunAdvice advice = Advise(run);
    EXPECT_DOUBLE_EQ(advice.down_seconds, with.down) << with.what;
    EXPECT_DOUBLE_EQ(advice.again_seconds, with.again) << with.what;
    EXPECT_EQ(advice.again_unknown, with.unknown) << with.what;
    ASSERT_TRUE(advice.ettr.has_value()) << with.what;
    EXPECT_NEAR(*advice.ettr, 1 - (with.down + with.again) / 3600, 1e-12) << with.what;
  }
}

TEST(Advise, ARunThatHasNotBegunHasNoGoodput) {
  ObservedRun run = Hour();
  run.until_wall_nanos = run.started_wall_nanos;
  EXPECT_FALSE(Advise(run).ettr.has_value());
}

TEST(Advise, LostStepsOfUnknownLengthAreReported) {
  ObservedRun run = Hour();
  run.failures = {At(600, 1000, 5)};
  EXPECT_TRUE(Advise(run).again_unknown);
}

TEST(Advise, UnknownValuesAreReported) {
  ObservedRun run = Hour();
  EXPECT_THAT(Advise(run).tiers[0].why_not, HasSubstr("--stall"));
  run.stall_seconds[0] = 0.04;
  run.failures = {At(600, 30'000)};
  const RunAdvice one = Advise(run);
  EXPECT_EQ(one.tiers[0].why_not, "not enough incidents yet (n = 1)");
  EXPECT_FALSE(one.tiers[0].interval_seconds.has_value());
  EXPECT_FALSE(one.expected_ettr.has_value());
  EXPECT_EQ(one.tiers[1].interval_seconds, 0) << "parity is computed in the background";
}

TEST(Advise, AnIntervalIsAdvisedOnceTheRateIsMeasured) {
  ObservedRun run = Hour();
  run.step_seconds = 2;
  run.stall_seconds[0] = 0.04;
  run.failures = {At(600, 30'000), At(1200, 20'000), At(2400, 90'000)};
  const RunAdvice advice = Advise(run);
  ASSERT_TRUE(advice.tiers[0].interval_seconds.has_value());
  EXPECT_NEAR(*advice.tiers[0].interval_seconds, BestInterval(0.04, 1200), 1e-9);
  EXPECT_EQ(advice.tiers[0].interval_steps, 5U) << "9.8 s of 2 s each";
  EXPECT_EQ(advice.recover_median_seconds, 30);
  EXPECT_EQ(advice.recover_worst_seconds, 90);
  EXPECT_NEAR(advice.expected_ettr.value_or(0), ExpectedEttr(0.04, 9.77, 1200, 30), 1e-3);
}

TEST(Advise, LostNodesCountForPeersOrWithoutThemForDisk) {
  ObservedRun run = Hour();
  run.failures = {At(100, 1000), At(600, 1000, 0, true), At(900, 1000, 0, true)};
  run.has_peers = true;
  const RunAdvice with = Advise(run);
  EXPECT_EQ(with.tiers[0].failures.count, 3U);
  EXPECT_EQ(with.tiers[1].failures.count, 2U);
  EXPECT_EQ(with.tiers[2].failures.count, 0U);
  run.has_peers = false;
  const RunAdvice without = Advise(run);
  EXPECT_EQ(without.tiers[1].failures.count, 0U);
  EXPECT_EQ(without.tiers[2].failures.count, 2U);
}

TEST(Advise, Spares) {
  ObservedRun run = Hour();
  EXPECT_EQ(Advise(run).spares, PoissonQuantile(2.9957, 0.99)) << "by the upper bound of the rate";
  for (int64_t i = 0; i < 4; ++i) run.failures.push_back(At(600 * i + 1, 1000, 0, true));
  EXPECT_EQ(Advise(run).spares, PoissonQuantile(4, 0.99)) << "four an hour, an hour to repair";
  run.repair_seconds = 900;
  EXPECT_EQ(Advise(run).spares, PoissonQuantile(1, 0.99));
}

}  // namespace
}  // namespace holdfast::cli
