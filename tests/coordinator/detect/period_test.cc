// The period of a program: how many operations of a kind an iteration has.

#include "coordinator/detect/period.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"
#include "coordinator/detect/lateness.h"
#include "tests/coordinator/detect/detect_test_util.h"

namespace holdfast::detect {
namespace {

/// Two members that complete the operations of a program. Each has its own clock.
class Ending {
 public:
  /// Completes an operation after a pause. `lost`: no member reports it.
  void After(double pause_ms, double iteration_ns, bool lost = false) {
    now_ns_ += static_cast<uint64_t>(pause_ms * kMs);
    GatheredOperation operation;
    operation.kind = CollectiveKind::kAllGather;
    operation.sequence = sequence_++;
    if (lost) return;
    for (const uint64_t offset : {uint64_t{1}, uint64_t{77'000} * kMs}) {
      operation.samples.push_back({offset + now_ns_ - kMs, offset + now_ns_, 1, 1});
    }
    period_.Add(operation, iteration_ns);
  }
  const Period& period() const { return period_; }

 private:
  Period period_;
  uint64_t now_ns_ = 0;
  uint64_t sequence_ = 0;
};

/// An iteration of 7 operations: a long pause, and then buckets of two sizes. Pauses vary by 5 %.
void Iterate(Ending& ending, Random& random, double iteration_ns) {
  for (const double pause_ms : {400.0, 100.0, 100.0, 40.0, 40.0, 100.0, 220.0}) {
    const double noise = 0.95 + 0.1 * static_cast<double>(random.Below(1000)) / 1000;
    ending.After(pause_ms * noise, iteration_ns, random.Below(50) == 0);
  }
}

TEST(PeriodTest, IsTheNumberOfOperationsAfterWhichPausesRepeat) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    for (const double iteration_ns : {0.0, 1000.0 * kMs}) {
      Ending ending;
      Random random(seed);
      for (int i = 0; i < 40; ++i) Iterate(ending, random, iteration_ns);
      EXPECT_EQ(ending.period().operations(), 7U) << iteration_ns << " seed " << seed;
      EXPECT_NEAR(ending.period().duration_ns(), 1000.0 * kMs, 30.0 * kMs) << iteration_ns;
    }
  }
}

TEST(PeriodTest, IsTheShortestOfEquallyGoodPeriods) {
  // Two iterations differ a little more than every other one.
  Ending ending;
  for (int i = 0; i < 60; ++i) {
    for (const double pause_ms : {400.0, 100.0, 40.0, 220.0}) {
      ending.After(pause_ms * (i % 2 == 0 ? 1 : 1.002), 0);
    }
  }
  EXPECT_EQ(ending.period().operations(), 4U);
}

TEST(PeriodTest, OneOperationInManyIterationsHoldsWholeIterations) {
  Ending ending;
  for (int i = 0; i < 8; ++i) ending.After(100'000, 1000.0 * kMs);
  EXPECT_EQ(ending.period().operations(), 1U);
}

TEST(PeriodTest, AlikePausesHaveAboutTheLengthOfAnIteration) {
  Ending ending;
  for (int i = 0; i < 200; ++i) ending.After(50, 1000.0 * kMs);
  EXPECT_GE(ending.period().operations(), 15U);
  EXPECT_LE(ending.period().operations(), 27U);
}

TEST(PeriodTest, IsUnknownAtFirstAndAfterTooFewOperations) {
  Ending ending;
  Random random(4);
  EXPECT_EQ(ending.period().operations(), 0U);
  Iterate(ending, random, 1000.0 * kMs);
  EXPECT_EQ(ending.period().operations(), 0U) << "one iteration does not show what repeats";
}

TEST(PeriodTest, AnEvaluationOfMinutesDoesNotChangeThePeriod) {
  Ending ending;
  Random random(5);
  for (int i = 0; i < 20; ++i) Iterate(ending, random, 1000.0 * kMs);
  ending.After(300'000, 1000.0 * kMs);
  for (int i = 0; i < 40; ++i) Iterate(ending, random, 1000.0 * kMs);
  EXPECT_EQ(ending.period().operations(), 7U);
}

/// A program whose iterations have six operations. The members compute for different times before
/// each of them, and the sums over an iteration are equal.
class Program {
 public:
  explicit Program(double iteration_ns) : iteration_ns_(iteration_ns) {}

  /// `slow_ms`: by how much member 3 is slower in an iteration.
  void Iterate(uint64_t slow_ms, uint64_t bytes_of_two = 1024) {
    static constexpr uint64_t kOwnMs[6][4] = {{120, 120, 120, 120}, {150, 150, 150, 170},
                                              {130, 130, 130, 130}, {130, 130, 130, 110},
                                              {120, 120, 120, 120}, {130, 130, 130, 130}};
    for (uint32_t step = 0; step < 6; ++step) {
      std::array<uint64_t, 4> own{};
      for (uint32_t i = 0; i < 4; ++i) own[i] = kOwnMs[step][i] + (i == 3 ? slow_ms / 6 : 0);
      const uint64_t slowest = *std::max_element(own.begin(), own.end());
      GatheredOperation operation;
      operation.kind = CollectiveKind::kAllReduce;
      operation.sequence = sequence_++;
      operation.bytes = 1024;
      operation.count = 4;
      operation.since = kNow + std::chrono::milliseconds(sequence_ * 200);
      for (uint32_t i = 0; i < 4; ++i) {
        const uint64_t start = clock_[i] + own[i] * kMs;
        const uint64_t stop = clock_[i] + (slowest + 10) * kMs;
        operation.samples.push_back({start, stop, blocked_[i] + 1, moved_[i]});
        blocked_[i] += stop - start;
        moved_[i] += i == 2 ? bytes_of_two : 1024;
        clock_[i] = stop;
      }
      lateness_.Add(operation, iteration_ns_, {}, true, baseline_);
    }
  }
  const Lateness& lateness() const { return lateness_; }

 private:
  const double iteration_ns_;
  Lateness lateness_{4, {}};
  RoleBaseline baseline_;
  std::array<uint64_t, 4> clock_{1, kMs, 5 * kMs, 9 * kMs};
  std::array<uint64_t, 4> blocked_{};
  std::array<uint64_t, 4> moved_{1, 1, 1, 1};
  uint64_t sequence_ = 0;
};

TEST(PeriodTest, WindowsHoldWholeIterations) {
  for (const double iteration_ns : {0.0, 850.0 * kMs}) {
    Program program(iteration_ns);
    for (int i = 0; i < 60; ++i) program.Iterate(0);
    EXPECT_NEAR(program.lateness().window_ns(), 860.0 * kMs, 1.0 * kMs) << iteration_ns;
    // Windows of five operations would show the member later or earlier by up to 3 %.
    EXPECT_NEAR(program.lateness().tracks()[3].excess(), 0, 0.003) << iteration_ns;
    EXPECT_LT(program.lateness().tracks()[3].slower_count(20), 2U) << iteration_ns;
    for (int i = 0; i < 25; ++i) program.Iterate(48);
    EXPECT_GE(program.lateness().tracks()[3].slower_count(20), 18U) << iteration_ns;
  }
}

TEST(PeriodTest, MembersWithDifferentWorkAreComparedWithoutReportedSteps) {
  Program program(0);
  for (int i = 0; i < 80; ++i) program.Iterate(0, 2048);
  EXPECT_GE(program.lateness().tracks()[0].windows(), 20U);
}

}  // namespace
}  // namespace holdfast::detect
