// A small part of the fault matrix, with seeds that the detector was not tuned with. `bench/run.sh
// fault-matrix` runs the full matrix.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "testing/sim/score.h"
#include "testing/sim/trace.h"

namespace holdfast::sim {
namespace {

constexpr uint64_t kFirstSeed = 900'000;

std::string Text(const Outcome& outcome) {
  std::string text;
  for (const detect::Verdict& verdict : outcome.reported) {
    text +=
        fmt::format("{}: {}\n", detect::ToString(verdict.fault), fmt::join(verdict.evidence, "; "));
  }
  return text;
}

class FaultTest : public testing::TestWithParam<std::tuple<FaultKind, Shape, uint32_t>> {};

TEST_P(FaultTest, IsFoundAndNoOtherRankIsBlamed) {
  const auto [kind, shape, world] = GetParam();
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + 3; ++seed) {
    const Scenario scenario{
        .shape = shape, .world = world, .fault = kind, .magnitude = 0.3, .conditions = {}};
    const Outcome outcome = RunScenario(scenario, seed, LimitsFor(scenario));
    EXPECT_TRUE(outcome.detected) << "seed " << seed << "\n" << Text(outcome);
    EXPECT_TRUE(outcome.exact) << "seed " << seed << "\n" << Text(outcome);
    EXPECT_TRUE(outcome.wrong.empty()) << "seed " << seed << "\n" << Text(outcome);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Hangs, FaultTest,
    testing::Combine(testing::Values(FaultKind::kStopped, FaultKind::kKilled, FaultKind::kNodeLost,
                                     FaultKind::kInfiniteKernel, FaultKind::kCpuSpin,
                                     FaultKind::kLoaderSleep, FaultKind::kMismatched,
                                     FaultKind::kSkipped, FaultKind::kDroppedEdge,
                                     FaultKind::kTwoStopped),
                     testing::ValuesIn(kShapes), testing::Values(8U, 64U)));
INSTANTIATE_TEST_SUITE_P(
    Slowness, FaultTest,
    testing::Combine(testing::Values(FaultKind::kSlowEdge, FaultKind::kSlowSend,
                                     FaultKind::kSlowReceive, FaultKind::kLatency,
                                     FaultKind::kSlowGpu, FaultKind::kTwoSlow),
                     testing::ValuesIn(kShapes), testing::Values(8U, 64U)));

TEST(SmallFaultTest, AFewPercentAreFoundAgainstTheRanksOwnPast) {
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + 3; ++seed) {
    const Scenario scenario{.shape = Shape::kPipeline,
                            .world = 64,
                            .fault = FaultKind::kSlowGpu,
                            .magnitude = 0.05,
                            .conditions = {}};
    const Outcome outcome = RunScenario(scenario, seed, LimitsFor(scenario));
    EXPECT_TRUE(outcome.exact && outcome.wrong.empty()) << "seed " << seed << "\n" << Text(outcome);
  }
}

TEST(SmallFaultTest, ASmallShareOfALongIterationIsFoundOnceItHasLasted) {
  double longest = 0;
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + 3; ++seed) {
    const Scenario scenario{.shape = Shape::kExperts,
                            .world = 1024,
                            .fault = FaultKind::kSlowGpu,
                            .magnitude = 0.05,
                            .conditions = {}};
    const Outcome outcome = RunScenario(scenario, seed, LimitsFor(scenario));
    EXPECT_TRUE(outcome.exact && outcome.wrong.empty()) << "seed " << seed << "\n" << Text(outcome);
    longest = std::max(longest, outcome.latency_iterations);
  }
  EXPECT_GT(longest, 50) << "no run depended on a small lasting change";
}

TEST(SmallFaultTest, SlowForATenthOfTheTimeIsUsuallyFound) {
  // Few of the windows are late, so chance decides in some jobs.
  int exact = 0;
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + 8; ++seed) {
    const Scenario scenario{.shape = Shape::kPipeline,
                            .world = 64,
                            .fault = FaultKind::kIntermittent,
                            .magnitude = 0.5,
                            .duty = 0.1,
                            .conditions = {}};
    const Outcome outcome = RunScenario(scenario, seed, LimitsFor(scenario));
    EXPECT_TRUE(outcome.wrong.empty()) << "seed " << seed << "\n" << Text(outcome);
    exact += outcome.exact ? 1 : 0;
  }
  EXPECT_GE(exact, 6);
}

TEST(TraceTest, NeighbouringSeedsShareNoDraws) {
  std::set<uint64_t> seen;
  size_t observed = 0;
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    Trace trace({.world = 64, .conditions = {}}, seed);
    trace.Advance();
    while (auto delivery = trace.Next(trace.horizon_s())) {
      if (delivery->digest->number != 1) continue;
      ++observed;
      seen.insert(delivery->digest->taken_ns);  // depends on clock offset, drift and time
    }
  }
  EXPECT_GT(observed, 100U);
  EXPECT_GT(seen.size() + 4, observed) << "a digest may be repeated";
}

class NegativeTest : public testing::TestWithParam<std::tuple<size_t, Shape>> {};

TEST_P(NegativeTest, NoRankIsBlamed) {
  const auto [negative, shape] = GetParam();
  for (uint32_t world : {8U, 64U}) {
    const Scenario scenario{
        .shape = shape, .world = world, .conditions = Negatives()[negative].conditions};
    const Outcome outcome =
        RunScenario(scenario, kFirstSeed, {.iterations_after = world == 8 ? 400U : 100U});
    EXPECT_TRUE(outcome.wrong.empty()) << Negatives()[negative].name << "\n" << Text(outcome);
  }
}

INSTANTIATE_TEST_SUITE_P(Negatives, NegativeTest,
                         testing::Combine(testing::Range<size_t>(0, 8),
                                          testing::ValuesIn(kShapes)));

}  // namespace
}  // namespace holdfast::sim
