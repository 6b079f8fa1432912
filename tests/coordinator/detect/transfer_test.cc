// Slow transfers, the delay matrix and the pace of a job.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/detect/pace.h"
#include "coordinator/detect/transfer.h"
#include "tests/coordinator/detect/detect_test_util.h"

namespace holdfast::detect {
namespace {

/// A communicator with an all-reduce every half second.
class Transferring {
 public:
  /// Runs all-reduces for `length_s`. Each transfer takes `transfer_ms`.
  void For(double length_s, uint64_t transfer_ms) {
    for (double at_s = 0; at_s < length_s; at_s += 0.5) {
      GatheredOperation operation;
      operation.kind = CollectiveKind::kAllReduce;
      operation.bytes = bytes_;
      operation.count = 2;
      operation.since = now_;
      // The first rank joins early and waits. The duration that the last rank records is that of
      // the transfer.
      const uint64_t took = transfer_ms * kMs + count_++ % 3 * kMs;
      operation.samples = {{0, took + 300 * kMs, 0, 0}, {0, took, 0, 0}};
      transfers_.Add(operation, iteration_ns_);
      now_ += std::chrono::milliseconds(500);
    }
  }
  void SetIteration(double ns) { iteration_ns_ = ns; }
  void SetBytes(uint64_t bytes) { bytes_ = bytes; }
  auto slow() const { return transfers_.slow(std::chrono::seconds(20)); }
  const TransferMonitor& operator*() const { return transfers_; }

 private:
  TransferMonitor transfers_{DetectorOptions()};
  Clock::TimePoint now_ = kNow;
  double iteration_ns_ = 1e9;
  uint64_t bytes_ = 1 << 20;
  uint64_t count_ = 0;
};

TEST(TransfersTest, ALastingSlowdownIsFoundAgainstItsOwnPast) {
  Transferring job;
  job.For(60, 100);
  EXPECT_FALSE(job.slow());
  job.For(14, 130);
  EXPECT_FALSE(job.slow()) << "28 operations of congestion are too few";
  job.For(18, 130);
  ASSERT_TRUE(job.slow());
  EXPECT_NEAR(job.slow()->now_ns / job.slow()->usual_ns, 1.3, 0.03);
  job.For(11, 100);
  EXPECT_FALSE(job.slow());
  EXPECT_GE((*job).longest_ended(), std::chrono::seconds(20));
}

TEST(TransfersTest, SmallTransfersAreIgnored) {
  for (const bool few : {true, false}) {
    Transferring job;
    job.SetBytes(few ? 4 : 1 << 20);
    job.For(60, 100);
    job.For(40, 300);
    EXPECT_EQ(job.slow().has_value(), !few);
  }
}

TEST(TransfersTest, ASlowdownMustLastThreeIterations) {
  Transferring job;
  job.SetIteration(30e9);
  job.For(400, 100);
  job.For(80, 130);
  EXPECT_FALSE(job.slow()) << "less than three iterations";
  job.For(60, 130);
  EXPECT_TRUE(job.slow());
}

/// What one rank sent to another one in `count` transfers, of 1 MiB in total.
RankTransfers Sent(uint32_t from, uint32_t to, uint64_t wait_ns, uint64_t count) {
  return {Rank{from},
          Rank{to},
          {.communicator = {1},
           .direction = Direction::kSend,
           .transfers = count,
           .bytes = 1 << 20,
           .transfer_ns = wait_ns}};
}

/// All ranks send to all ranks. `slow`: factors on the waits of some connections.
DelayMatrix Matrix(const std::map<std::pair<uint32_t, uint32_t>, double>& slow) {
  DelayMatrix matrix(1000);
  for (uint32_t from = 0; from < 5; ++from) {
    for (uint32_t to = 0; to < 5; ++to) {
      if (from == to) continue;
      const auto found = slow.find({from, to});
      const double ratio = found == slow.end() ? 1 : found->second;
      const auto wait = static_cast<uint64_t>(ratio * (10'000 + 37 * ((from * 5 + to) % 7)));
      for (int i = 0; i < 4; ++i) {
        matrix.Add(Sent(from, to, wait, 5));
      }
    }
  }
  return matrix;
}

TEST(DelayMatrixTest, AHotCellIsAConnection) {
  const auto blame = Matrix({{{1, 3}, 2.0}}).Find({});
  ASSERT_TRUE(blame);
  EXPECT_EQ(blame->edge, (Edge{Rank{1}, Rank{3}}));
  EXPECT_FALSE(blame->rank);
}

TEST(DelayMatrixTest, AHotRowIsASenderAndAHotColumnAReceiver) {
  const auto row = Matrix({{{1, 0}, 2}, {{1, 2}, 2}, {{1, 3}, 2.1}, {{1, 4}, 2}}).Find({});
  ASSERT_TRUE(row && row->rank);
  EXPECT_EQ(*row->rank, Rank{1});
  EXPECT_TRUE(row->sends);
  const auto column = Matrix({{{0, 2}, 2}, {{1, 2}, 2}, {{3, 2}, 2.1}}).Find({});
  ASSERT_TRUE(column && column->rank);
  EXPECT_EQ(*column->rank, Rank{2});
  EXPECT_FALSE(column->sends);
  EXPECT_EQ(column->hot, 3U);
}

TEST(DelayMatrixTest, SlowConnectionsWithoutACommonEndAreCongestion) {
  EXPECT_FALSE(Matrix({{{1, 3}, 2.0}}).Find({})->widespread);
  EXPECT_FALSE(Matrix({{{1, 3}, 2.0}, {{3, 1}, 2.0}}).Find({})->widespread) << "one link";
  EXPECT_FALSE(Matrix({{{1, 3}, 2.0}, {{0, 1}, 2.0}}).Find({})->widespread) << "one NIC";
  const auto blame = Matrix({{{1, 3}, 2.0}, {{0, 2}, 2.0}}).Find({});
  ASSERT_TRUE(blame);
  EXPECT_TRUE(blame->widespread);
  EXPECT_EQ(blame->hot_edges.size(), 2U);
}

TEST(DelayMatrixTest, NoConnectionStandsOutInAHealthyMatrix) { EXPECT_FALSE(Matrix({}).Find({})); }

TEST(DelayMatrixTest, NoConnectionIsNamedIfNoneWaits) {
  DelayMatrix matrix(100);
  const auto all_wait = [&](uint64_t wait_ns) {
    for (uint32_t from = 0; from < 4; ++from) {
      for (int i = 0; i < 20; ++i) {
        matrix.Add(Sent(from, (from + 1) % 4, from == 2 ? wait_ns : 0, 1));
      }
    }
  };
  all_wait(0);
  EXPECT_FALSE(matrix.Find({}));
  for (int i = 0; i < 3; ++i) all_wait(20'000);
  ASSERT_TRUE(matrix.Find({})) << "a connection that waits is found";
  EXPECT_EQ(matrix.Find({})->edge, (Edge{Rank{2}, Rank{3}}));
}

TEST(DelayMatrixTest, AFewLongWaitsDoNotBlameAConnection) {
  DelayMatrix matrix = Matrix({});
  const auto wait = [&](uint64_t wait_ns) { matrix.Add(Sent(1, 3, wait_ns, 1)); };
  for (int i = 0; i < 3; ++i) wait(5'000'000);  // 500 times as long as usual
  EXPECT_FALSE(matrix.Find({}));
  for (int i = 0; i < 8; ++i) wait(20'000);
  ASSERT_TRUE(matrix.Find({}));
  EXPECT_EQ(matrix.Find({})->edge, (Edge{Rank{1}, Rank{3}}));
}

// Among three ranks, two thirds of the connections have one slow rank as an end.
TEST(DelayMatrixTest, TheCommonEndOfTheConnectionsThatCostMoreThanBeforeIsBlamed) {
  std::vector<DelayMatrix::Cost> changes = {{{0, 1}, 2.0}, {{1, 0}, 1.9}, {{1, 2}, 2.1},
                                            {{2, 1}, 2.0}, {{0, 2}, 1.0}, {{2, 0}, 1.1}};
  auto blame = DelayMatrix::FindChanged(changes, 1.25);
  ASSERT_TRUE(blame.has_value());
  EXPECT_EQ(blame->rank, Rank{1});
  EXPECT_EQ(blame->edge, (Edge{Rank{1}, Rank{2}}));
  EXPECT_EQ(blame->hot_edges.size(), 4U);
  EXPECT_FALSE(blame->widespread);
  // Only one connection, and the two directions of one.
  changes = {{{0, 1}, 2.0}, {{1, 2}, 1.0}, {{2, 0}, 1.0}};
  blame = DelayMatrix::FindChanged(changes, 1.25);
  EXPECT_FALSE(blame->rank.has_value());
  EXPECT_EQ(blame->edge, (Edge{Rank{0}, Rank{1}}));
  changes.push_back({{1, 0}, 1.8});
  EXPECT_FALSE(DelayMatrix::FindChanged(changes, 1.25)->rank.has_value());
  // None, and all: the network has become slower.
  EXPECT_FALSE(DelayMatrix::FindChanged({{{0, 1}, 1.0}, {{1, 0}, 1.1}}, 1.25).has_value());
  EXPECT_FALSE(DelayMatrix::FindChanged({{{0, 1}, 2.0}, {{1, 0}, 2.1}}, 1.25).has_value());
  // Without a common end: congestion.
  changes = {{{0, 1}, 2.0}, {{2, 3}, 2.0}, {{1, 2}, 1.0}};
  EXPECT_TRUE(DelayMatrix::FindChanged(changes, 1.25)->widespread);
}

TEST(DelayMatrixTest, OneMessageIsTooFewForACost) {
  DelayMatrix matrix(10);
  for (uint32_t to = 1; to < 5; ++to) {
    const uint64_t wait_ns = to == 2 ? 50'000 : 10'000;
    matrix.Add(Sent(0, to, wait_ns, 20));
  }
  EXPECT_FALSE(matrix.Find({}));
}

TEST(PaceTest, AShiftOfTenPercentIsFoundAndDated) {
  Pace pace;
  for (uint64_t step = 1; step <= 40; ++step) pace.Add(step, (1000 + step % 7) * kMs);
  EXPECT_FALSE(pace.shift());
  EXPECT_NEAR(pace.iteration_ns(), 1003e6, 5e6);
  for (uint64_t step = 41; step <= 60; ++step) pace.Add(step, (1100 + step % 7) * kMs);
  ASSERT_TRUE(pace.shift());
  EXPECT_NEAR(static_cast<double>(pace.shift()->step), 41, 3);
  EXPECT_NEAR(pace.shift()->after_ns / pace.shift()->before_ns, 1.1, 0.01);
}

TEST(PaceTest, TheFirstStepsDoNotShowTheDurationOfAnIteration) {
  // The first step includes start-up. In the second, the CPU only enqueues work.
  const std::vector<uint64_t> first_ms = {7000, 12};
  Pace pace;
  for (uint64_t step = 0; step < 20; ++step) {
    pace.Add(step, (step < first_ms.size() ? first_ms[step] : 600) * kMs);
    EXPECT_TRUE(pace.iteration_ns() == 0 || pace.iteration_ns() >= 600e6) << pace.iteration_ns();
  }
  EXPECT_EQ(pace.iteration_ns(), 600e6);
}

TEST(PaceTest, OneLongStepAndImplausibleStepsAreNoShift) {
  Pace pace;
  for (uint64_t step = 1; step <= 60; ++step) {
    pace.Add(step, step == 50 ? 60'000 * kMs : 1000 * kMs);
    pace.Add(step + (uint64_t{1} << 40), 5000 * kMs);
    pace.Add(0, 5000 * kMs);
  }
  EXPECT_FALSE(pace.shift());
  EXPECT_NEAR(pace.iteration_ns(), 1000e6, 1e6);
}

}  // namespace
}  // namespace holdfast::detect
