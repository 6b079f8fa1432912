// The periodic comparison of all connections.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/detect/scan.h"
#include "tests/coordinator/detect/detect_test_util.h"

namespace holdfast::detect {
namespace {

using std::chrono::seconds;

/// A ring of ranks. Each sends to the next one, on another node.
class Ring {
 public:
  explicit Ring(uint32_t ranks, int every_s = 1) : factors_(ranks, 1), every_s_(every_s) {}

  /// Sets how many times as long rank `from` waits for the next rank.
  void SetFactor(uint32_t from, double factor) { factors_[from] = factor; }
  void SetLonger(bool longer) { longer_ = longer; }
  void SetCongested() { congested_ = true; }
  /// Runs for some time, or until a slow connection is found. Returns how long it ran.
  int RunFor(int time_s) {
    for (int second = 0; second < time_s; ++second) {
      now_ += seconds(1);
      ++at_s_;
      if (at_s_ % every_s_ == 0) Operate();
      // Some ranks report the operation a second later.
      if (at_s_ % every_s_ <= 1) last_operation_ = now_;
      scan_.Advance(now_, {last_operation_, longer_, congested_});
      if (!scan_.slow().empty()) return second + 1;
    }
    return time_s;
  }
  const std::vector<ConnectionScan::Slow>& slow() const { return scan_.slow(); }
  bool measures() const { return scan_.measures(); }
  /// Whether the scan has seen congestion in the last `seconds`.
  bool saw_congestion(int time_s) const { return scan_.congested_at() > now_ - seconds(time_s); }

 private:
  void Operate() {
    if (!scan_.measures()) return;
    for (uint32_t from = 0; from < factors_.size(); ++from) {
      const auto to = static_cast<uint32_t>((from + 1) % factors_.size());
      const uint64_t wait_ns = 10'000 + 100 * ((at_s_ / every_s_ + from) % 3);
      scan_.Add({Rank{from},
                 Rank{to},
                 {.communicator = {1},
                  .direction = Direction::kSend,
                  .transfers = 1,
                  .bytes = 1 << 20,
                  .transfer_ns = static_cast<uint64_t>(factors_[from] * double(wait_ns))}},
                {}, static_cast<uint32_t>(factors_.size()));
    }
  }

  ConnectionScan scan_{DetectorOptions()};
  std::vector<double> factors_;
  const int every_s_;
  int at_s_ = 0;
  bool longer_ = false;
  bool congested_ = false;
  Clock::TimePoint now_ = kNow;
  Clock::TimePoint last_operation_;
};

TEST(ConnectionScanTest, AConnectionThatWasAlwaysSlowIsFoundAmongFour) {
  Ring ring(4);
  ring.SetFactor(2, 2);
  EXPECT_LT(ring.RunFor(300), 140);
  ASSERT_EQ(ring.slow().size(), 1U);
  EXPECT_EQ(ring.slow()[0].blame.edge, (Edge{Rank{2}, Rank{3}}));
  EXPECT_FALSE(ring.slow()[0].past);
  EXPECT_GE(ring.slow()[0].lasting, seconds(60));
}

TEST(ConnectionScanTest, OfTwoConnectionsTheOneThatHasBecomeSlowerIsFound) {
  Ring ring(2);
  ring.SetFactor(0, 2);
  EXPECT_EQ(ring.RunFor(300), 300) << "one of two may be of another kind";
  ring.SetFactor(1, 2);
  ring.RunFor(300);
  ASSERT_EQ(ring.slow().size(), 1U);
  EXPECT_EQ(ring.slow()[0].blame.edge, (Edge{Rank{1}, Rank{0}}));
  EXPECT_TRUE(ring.slow()[0].past);
}

TEST(ConnectionScanTest, AConnectionIsNotBlamedIfTheOtherHasBecomeFaster) {
  Ring ring(2);
  ring.SetFactor(0, 2);
  ring.RunFor(200);
  ring.SetFactor(0, 1);
  EXPECT_EQ(ring.RunFor(300), 300);
}

TEST(ConnectionScanTest, CongestionOfLessThanAMinuteIsNotReported) {
  Ring ring(4);
  for (int time = 0; time < 20; ++time) {
    ring.SetFactor(1, 2);
    EXPECT_EQ(ring.RunFor(45), 45);
    ring.SetFactor(1, 1);
    EXPECT_EQ(ring.RunFor(30), 30);
  }
}

TEST(ConnectionScanTest, AfterCongestionAConnectionMustBeSlowForNinetySeconds) {
  Ring ring(4);
  ring.SetCongested();
  ring.SetFactor(1, 2);
  EXPECT_LT(ring.RunFor(300), 180);
  ASSERT_EQ(ring.slow().size(), 1U);
  EXPECT_GE(ring.slow()[0].lasting, seconds(90));
}

/// Each comparison finds two slow connections, one of which the comparison before has found too.
TEST(ConnectionScanTest, DifferentSlowConnectionsInARowAreNotOneThatLasts) {
  Ring ring(8);
  EXPECT_EQ(ring.RunFor(60), 60);
  for (uint32_t first = 0; first < 8; ++first) {
    ring.SetFactor((first + 7) % 8, 1);
    ring.SetFactor(first, 2);
    ring.SetFactor((first + 1) % 8, 2);
    EXPECT_EQ(ring.RunFor(20), 20) << first;
  }
}

/// Two connections of rank 2 are slow. The one that is named has just become slow.
TEST(ConnectionScanTest, TheConnectionThatIsNamedHasItselfLasted) {
  Ring ring(8);
  EXPECT_EQ(ring.RunFor(60), 60);
  ring.SetFactor(2, 2);
  EXPECT_EQ(ring.RunFor(40), 40);
  ring.SetFactor(1, 2.4);
  EXPECT_GE(ring.RunFor(300), 45) << "the comparison may have begun before";
  ASSERT_EQ(ring.slow().size(), 1U);
  EXPECT_EQ(ring.slow()[0].blame.edge, (Edge{Rank{1}, Rank{2}}));
}

TEST(ConnectionScanTest, ASlowConnectionThatIsAsUsualAgainWasCongestion) {
  Ring ring(4);
  ring.RunFor(200);
  EXPECT_FALSE(ring.saw_congestion(200));
  ring.SetFactor(1, 2);
  ring.RunFor(45);
  EXPECT_FALSE(ring.saw_congestion(200)) << "it may be a fault";
  ring.SetFactor(1, 1);
  ring.RunFor(75);
  EXPECT_TRUE(ring.saw_congestion(200));
}

TEST(ConnectionScanTest, SlowConnectionsWithoutACommonEndAreNotReported) {
  Ring ring(6);
  ring.SetFactor(1, 2);
  ring.SetFactor(4, 2);
  EXPECT_EQ(ring.RunFor(300), 300);
  EXPECT_TRUE(ring.saw_congestion(100));
}

TEST(ConnectionScanTest, OfRareOperationsEachIsMeasured) {
  Ring ring(4, 100);
  EXPECT_EQ(ring.RunFor(150), 150);
  ring.SetFactor(2, 2);
  EXPECT_LE(ring.RunFor(900), 600);
  ASSERT_EQ(ring.slow().size(), 1U);
  EXPECT_EQ(ring.slow()[0].blame.edge, (Edge{Rank{2}, Rank{3}}));
}

TEST(ConnectionScanTest, LongerIterationsBeginAComparison) {
  Ring ring(4);
  ring.RunFor(75);
  EXPECT_FALSE(ring.measures());
  ring.SetLonger(true);
  ring.RunFor(1);
  EXPECT_TRUE(ring.measures());
  ring.RunFor(15);
  EXPECT_FALSE(ring.measures()) << "only once";
}

}  // namespace
}  // namespace holdfast::detect
