// Stragglers of jobs whose communication is not recorded, from the ends of their steps.

#include <gtest/gtest.h>

#include <random>

#include "tests/coordinator/detect/detect_test_util.h"

namespace holdfast::detect {
namespace {

/// Ranks that meet once in each step, in an operation that is not recorded. Each rank then has
/// some work left before its step ends.
class UnrecordedJob {
 public:
  UnrecordedJob(uint32_t nodes, uint32_t ranks_per_node)
      : late_ms(nodes * ranks_per_node),
        nodes_(nodes),
        ranks_per_node_(ranks_per_node),
        ended_ns_(nodes * ranks_per_node),
        detector(Incarnation{1}, nodes * ranks_per_node) {}

  /// Makes steps, and returns the ranks that a verdict named after any of them.
  std::set<uint32_t> NamedIn(int steps) {
    std::set<uint32_t> named;
    for (int i = 0; i < steps; ++i) {
      for (const Verdict& verdict : Step()) {
        EXPECT_EQ(verdict.fault, FaultClass::kComputeSlow);
        EXPECT_EQ(verdict.action, Action::kAlert);
        for (const Rank rank : verdict.ranks) named.insert(rank.value);
      }
    }
    return named;
  }

  std::vector<double> late_ms;  // by rank: the work that is left, beyond the usual 20 ms
  double iteration_ms = 1000;
  double noise_ms = 0.2;
  uint8_t phases = 0;    // of all ranks
  bool records = false;  // one operation is recorded

 private:
  std::vector<Verdict> Step() {
    at_ns_ += static_cast<uint64_t>(iteration_ms * 1e6);
    const uint64_t taken_ns = at_ns_ + 900 * kMs;
    const Clock::TimePoint now = kNow + std::chrono::nanoseconds(taken_ns);
    ++step_;
    for (uint32_t node = 0; node < nodes_; ++node) {
      Digest digest;
      digest.node = "n" + std::to_string(node);
      digest.incarnation = Incarnation{1};
      digest.world = nodes_ * ranks_per_node_;
      digest.agent_start = 1;
      digest.number = step_;
      digest.taken_ns = taken_ns;
      for (uint32_t i = 0; i < ranks_per_node_; ++i) {
        const uint32_t rank = node * ranks_per_node_ + i;
        const double extra_ms = noise_ms * static_cast<double>(random_()) / 0x1p31;
        const uint64_t end_ns =
            at_ns_ + static_cast<uint64_t>((20 + late_ms[rank] + extra_ms) * 1e6);
        digest.ranks.push_back({.rank = Rank{rank},
                                .phases = phases,
                                .step = step_,
                                .since_step_ns = taken_ns - end_ns,
                                .steps = {{step_ - 1, end_ns - ended_ns_[rank]}}});
        ended_ns_[rank] = end_ns;
      }
      if (records && node == 0) {
        digest.communicators.push_back({.id = {kAll}, .role = CommunicatorRole::kData});
        for (uint32_t rank = 0; rank < nodes_ * ranks_per_node_; ++rank) {
          digest.communicators.back().members.push_back(Rank{rank});
        }
        digest.completed.push_back({Rank{0}, {{kAll}, kReduce, step_}});
      }
      detector.Observe(digest, now);
    }
    return detector.Evaluate(now);
  }

  const uint32_t nodes_;
  const uint32_t ranks_per_node_;
  std::vector<uint64_t> ended_ns_;  // by rank: the end of its last step
  uint64_t at_ns_ = 0;
  uint64_t step_ = 0;
  std::minstd_rand random_;

 public:
  Detector detector;
};

/// Rank 3 and the operation that all wait for it in become slower by 100 ms.
std::set<uint32_t> NamedAfterSlowdown(UnrecordedJob& job, double late_ms = 4) {
  EXPECT_EQ(job.NamedIn(100), std::set<uint32_t>());
  job.late_ms[3] += late_ms;
  job.iteration_ms += 100;
  return job.NamedIn(40);
}

TEST(StepEndsTest, ARankThatEndsItsStepsLaterThanBeforeIsSlow) {
  UnrecordedJob job(2, 4);
  EXPECT_EQ(NamedAfterSlowdown(job), std::set<uint32_t>{3});
}

TEST(StepEndsTest, ASlowdownThatGrowsForManyStepsIsNotLearned) {
  UnrecordedJob job(2, 4);
  EXPECT_EQ(job.NamedIn(100), std::set<uint32_t>());
  std::set<uint32_t> named;
  for (int i = 0; i < 200; ++i) {
    job.late_ms[3] += 0.03;
    job.iteration_ms += 1;
    named.merge(job.NamedIn(1));
  }
  EXPECT_EQ(named, std::set<uint32_t>{3});
}

TEST(StepEndsTest, ARankThatAlwaysEndedItsStepsLaterHasMoreWork) {
  UnrecordedJob job(2, 4);
  job.late_ms[5] = 10;  // it writes the log
  EXPECT_EQ(NamedAfterSlowdown(job, 0), std::set<uint32_t>());
}

TEST(StepEndsTest, IterationsMustBeLonger) {
  UnrecordedJob job(2, 4);
  job.NamedIn(100);
  job.late_ms[3] = 4;
  EXPECT_EQ(job.NamedIn(60), std::set<uint32_t>());
}

TEST(StepEndsTest, ADelayThatIsFarTooShortDoesNotExplainLongerIterations) {
  UnrecordedJob job(2, 4);
  job.NamedIn(100);
  job.late_ms[3] = 4;
  job.iteration_ms += 1000;
  EXPECT_EQ(job.NamedIn(60), std::set<uint32_t>());
}

TEST(StepEndsTest, AChangeThatSeveralRanksShareHasACommonCause) {
  UnrecordedJob job(1, 8);
  job.NamedIn(100);
  for (const uint32_t rank : {3, 5, 6}) job.late_ms[rank] = 4;
  job.iteration_ms += 100;
  EXPECT_EQ(job.NamedIn(60), std::set<uint32_t>());
}

TEST(StepEndsTest, AChangeMustExceedTheUsualChanges) {
  UnrecordedJob job(6, 2);
  job.NamedIn(100);
  // In each node, one rank now ends later than the other.
  for (uint32_t node = 0; node < 6; ++node) job.late_ms[2 * node + 1] = 2 + 0.2 * node;
  job.late_ms[3] = 4;
  job.iteration_ms += 100;
  EXPECT_EQ(job.NamedIn(60), std::set<uint32_t>());
}

TEST(StepEndsTest, AChangeMustShowInMostSteps) {
  UnrecordedJob job(2, 4);
  job.NamedIn(100);
  job.iteration_ms += 100;
  for (int i = 0; i < 60; ++i) {
    job.late_ms[3] = i % 5 < 3 ? 4 : 0;
    EXPECT_EQ(job.NamedIn(1), std::set<uint32_t>());
  }
}

TEST(StepEndsTest, AChangeThatIsNotFarAboveTheNoiseMustLast) {
  UnrecordedJob job(2, 4);
  job.noise_ms = 3.4;
  job.NamedIn(100);
  job.late_ms[3] = 4;
  job.iteration_ms += 100;
  EXPECT_EQ(job.NamedIn(20), std::set<uint32_t>());
  EXPECT_EQ(job.NamedIn(20), std::set<uint32_t>{3});
}

TEST(StepEndsTest, RanksThatEndTheirStepsFarApartDoNotWaitForEachOther) {
  UnrecordedJob job(2, 4);
  job.NamedIn(100);
  job.late_ms[3] = 600;
  job.NamedIn(10);
  job.late_ms[3] = 4;
  job.iteration_ms += 100;
  EXPECT_EQ(job.NamedIn(40), std::set<uint32_t>()) << "its past is forgotten";
}

TEST(StepEndsTest, OneLongStepDoesNotCount) {
  UnrecordedJob job(2, 4);
  job.NamedIn(100);
  job.late_ms[3] = 600;
  job.NamedIn(1);
  job.late_ms[3] = 0;
  EXPECT_EQ(NamedAfterSlowdown(job), std::set<uint32_t>{3});
}

TEST(StepEndsTest, StepsInMarkedPhasesDoNotCount) {
  UnrecordedJob job(2, 4);
  job.NamedIn(100);
  job.phases = static_cast<uint8_t>(Phase::kEvaluation);
  job.late_ms[3] = 4;
  job.iteration_ms += 100;
  EXPECT_EQ(job.NamedIn(40), std::set<uint32_t>());
}

TEST(StepEndsTest, RecordedOperationsShowMore) {
  UnrecordedJob job(2, 4);
  job.records = true;
  EXPECT_EQ(NamedAfterSlowdown(job), std::set<uint32_t>());
}

}  // namespace
}  // namespace holdfast::detect
