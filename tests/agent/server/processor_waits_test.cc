// How long processes wait for a processor.

#include "agent/server/processor_waits.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

namespace holdfast::agent {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

/// Processes that compute without a pause, all on one processor.
class Busy {
 public:
  explicit Busy(int count) {
    for (int i = 0; i < count; ++i) {
      const pid_t pid = ::fork();
      if (pid == 0) Compute();
      pids_.push_back(pid);
    }
  }
  ~Busy() { LeaveOnly(0); }
  /// Ends all but the first `count`.
  void LeaveOnly(size_t count) {
    for (; pids_.size() > count; pids_.pop_back()) {
      ::kill(pids_.back(), SIGKILL);
      ::waitpid(pids_.back(), nullptr, 0);
    }
  }
  pid_t pid() const { return pids_.front(); }

 private:
  [[noreturn]] static void Compute() {
    cpu_set_t all;
    ::sched_getaffinity(0, sizeof(all), &all);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int processor = 0; CPU_COUNT(&one) == 0; ++processor) {
      if (CPU_ISSET(processor, &all)) CPU_SET(processor, &one);
    }
    ::sched_setaffinity(0, sizeof(one), &one);
    for (volatile uint64_t turns = 0;;) turns = turns + 1;
  }

  std::vector<pid_t> pids_;
};

TEST(ProcessorWaitsTest, ProcessesThatShareAProcessorWait) {
  Busy busy(8);
  ProcessorWaits waits;
  EXPECT_EQ(waits.PercentOf(busy.pid(), 'R', kSecond), 0U) << "nothing to compare with";
  std::this_thread::sleep_for(std::chrono::seconds(2));
  EXPECT_EQ(waits.PercentOf(busy.pid(), 'R', 2 * kSecond), 0U) << "too early";
  EXPECT_GE(waits.PercentOf(busy.pid(), 'R', 3 * kSecond), 50U) << "seven others on the processor";
  EXPECT_GE(waits.PercentOf(busy.pid(), 'R', 3 * kSecond + 1), 50U) << "until the next measurement";
  busy.LeaveOnly(1);
  EXPECT_LT(waits.PercentOf(busy.pid(), 'R', 5 * kSecond), 50U) << "earlier waits do not count";
  EXPECT_EQ(waits.PercentOf(busy.pid(), 'R', 15 * kSecond), 0U) << "after a pause";
}

TEST(ProcessorWaitsTest, AProcessThatIsReadyAndHasNotRunWaitsAllTheTime) {
  constexpr ProcessorTimes kBefore{.ran_ns = kSecond, .waited_ns = kSecond};
  const auto wait = [&](uint64_t ran_ns, uint64_t waited_ns, char state) {
    const ProcessorTimes after{.ran_ns = kSecond + ran_ns, .waited_ns = kSecond + waited_ns};
    return ProcessorWaits::WaitIn(2 * kSecond, kBefore, after, state);
  };
  EXPECT_EQ(wait(0, 0, 'R'), 100U) << "the wait has not ended, and is not counted yet";
  EXPECT_EQ(wait(0, 0, 'S'), 0U);
  EXPECT_EQ(wait(1, 0, 'R'), 0U);
  EXPECT_EQ(wait(kSecond / 10, kSecond, 'S'), 50U) << "at the end it had done its work";
}

TEST(ProcessorWaitsTest, AKernelThatCountsNoTimesShowsNoWaits) {
  EXPECT_EQ(ProcessorWaits::WaitIn(2 * kSecond, {}, {}, 'R'), 0U);
}

TEST(ProcessorWaitsTest, AProcessThatRunsDoesNotWait) {
  constexpr ProcessorTimes kBefore;
  const auto wait = [&](uint64_t ran_ns) {
    return ProcessorWaits::WaitIn(2 * kSecond, kBefore, {ran_ns, 2 * kSecond - ran_ns}, 'R');
  };
  EXPECT_EQ(wait(kSecond / 5), 90U);
  EXPECT_EQ(wait(kSecond / 2), 0U) << "an endless loop runs, also on a loaded machine";
}

TEST(ProcessorWaitsTest, AProcessThatSleepsOrHasEndedDoesNotWait) {
  const pid_t sleeps = ::fork();
  if (sleeps == 0) {
    ::pause();
    ::_exit(0);
  }
  ProcessorWaits waits;
  waits.PercentOf(sleeps, 'S', kSecond);
  EXPECT_LT(waits.PercentOf(sleeps, 'S', 3 * kSecond), 10U);
  ::kill(sleeps, SIGKILL);
  ::waitpid(sleeps, nullptr, 0);
  EXPECT_EQ(waits.PercentOf(sleeps, 'S', 5 * kSecond), 0U);
}

}  // namespace
}  // namespace holdfast::agent
