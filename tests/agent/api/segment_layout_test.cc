#include "agent/api/segment_layout.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <thread>

#include "base/clock.h"

namespace holdfast::agent {
namespace {
using std::chrono::milliseconds;

/// A control block in memory that a forked child shares.
class SegmentLayoutTest : public ::testing::Test {
 protected:
  SegmentLayoutTest()
      : memory_(::mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0)) {}
  ~SegmentLayoutTest() override { ::munmap(memory_, kControlBytes); }
  SegmentControl& control() { return *static_cast<SegmentControl*>(memory_); }
  SlotProgress& progress() { return control().slots[0]; }

  void* memory_;
};

TEST_F(SegmentLayoutTest, ReturnsAtOnceWhenThereIsProgress) {
  progress().copied = 10;
  EXPECT_EQ(AwaitProgress(progress(), 4, -1, Clock::Real()), 10U);
}

TEST_F(SegmentLayoutTest, TimesOutWithTheOldValue) {
  PublishProgress(progress(), 10);
  auto begin = Clock::Real().Now();
  EXPECT_EQ(AwaitProgress(progress(), 10, 30, Clock::Real()), 10U);
  EXPECT_GE(Clock::Real().Now() - begin, milliseconds(30));
  EXPECT_EQ(AwaitProgress(progress(), 10, 0, Clock::Real()), 10U);
}

TEST_F(SegmentLayoutTest, FollowsAnotherProcessToTheEnd) {
  constexpr uint64_t kEnd = 20'000;
  pid_t child = ::fork();
  if (child == 0) {
    for (uint64_t i = 1; i <= kEnd; ++i) PublishProgress(progress(), i);
    ::_exit(0);
  }
  uint64_t seen = 0;
  while (seen < kEnd) {
    uint64_t now = AwaitProgress(progress(), seen, 20'000, Clock::Real());
    ASSERT_GT(now, seen) << "a wake-up was lost";
    seen = now;
  }
  EXPECT_EQ(seen, kEnd);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// The waiter sleeps before the other process publishes, so only a wake across processes can end
// the wait.
TEST_F(SegmentLayoutTest, WakesAcrossProcesses) {
  pid_t child = ::fork();
  if (child == 0) ::_exit(AwaitProgress(progress(), 0, 20'000, Clock::Real()) == 5 ? 0 : 1);
  Clock::Real().SleepFor(milliseconds(50));
  auto begin = Clock::Real().Now();
  PublishProgress(progress(), 5);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_LT(Clock::Real().Now() - begin, milliseconds(15'000));
}

TEST_F(SegmentLayoutTest, AScribblerNeitherHangsNorMisleadsTheReader) {
  PublishProgress(progress(), 100);
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    uint64_t value = 0;
    while (!stop) {
      progress().copied = value++ % 100;  // always below the last value
      progress().wake.fetch_add(1);
    }
  });
  EXPECT_EQ(AwaitProgress(progress(), 100, 50, Clock::Real()), 100U) << "progress never goes back";
  stop = true;
  scribbler.join();
  progress().copied = ULLONG_MAX;
  EXPECT_EQ(AwaitProgress(progress(), 100, 0, Clock::Real()), ULLONG_MAX);
}

TEST(ProgressTest, OneByteMoreIsProgress) {
  SlotProgress progress;
  PublishProgress(progress, 6);
  EXPECT_EQ(AwaitProgress(progress, 5, 2000, Clock::Real()), 6U);
  EXPECT_EQ(AwaitProgress(progress, 6, 1, Clock::Real()), 6U)
      << "without progress the last value is returned";
}

}  // namespace
}  // namespace holdfast::agent
