#include "agent/pipeline/watched_ranks.h"

#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>

// Observation of a trainer that ended without a Goodbye.

namespace holdfast::agent {
namespace {

class WatchedRanksTest : public ::testing::Test {
 protected:
  /// Starts a process that runs `body` once it was observed alive.
  void Start(const std::function<void()>& body) {
    int observed[2] = {};
    ASSERT_EQ(::pipe(observed), 0);
    child_ = ::fork();
    if (child_ == 0) {
      char byte = 0;
      if (::read(observed[0], &byte, 1) != 1) ::_exit(99);
      body();
      ::_exit(0);
    }
    WatchedRank who;
    who.job = "gpt";
    who.world = 1;
    who.incarnation = Incarnation{1};
    who.process = NameProcess(child_);
    ranks_.Join(who, PidFdOf(child_).value(), *control_);
    EXPECT_TRUE(Observe(0).alive);
    ASSERT_EQ(::write(observed[1], "x", 1), 1);
    ::close(observed[0]);
    ::close(observed[1]);
  }
  void AwaitZombie() {
    siginfo_t info{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOWAIT), 0);
    ranks_.Leave("gpt", Rank{0}, false);
  }
  void Reap() { ::waitpid(child_, nullptr, 0); }
  ObservedRank Observe(uint64_t at_ms) { return ranks_.Observe(1 + at_ms * 1'000'000).at(0); }
  /// Returns whether the kernel reports exit statuses to processes other than the parent.
  static bool KernelReportsExitStatus() {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    UniqueFd fd = PidFdOf(child).value();
    ::waitpid(child, nullptr, 0);
    struct {
      uint64_t mask = 1U << 3;
      uint64_t rest[7] = {};
    } info;
    return ::ioctl(fd.get(), _IOWR(0xFF, 11, info), &info) == 0 && (info.mask & (1U << 3)) != 0;
  }

  std::unique_ptr<SegmentControl> control_ = std::make_unique<SegmentControl>();
  WatchedRanks ranks_;
  pid_t child_ = 0;
};

TEST_F(WatchedRanksTest, AProcessThatSigtermEndedIsNoFailure) {
  if (!KernelReportsExitStatus()) GTEST_SKIP() << "this kernel does not report how a process ended";
  Start([] { ::pause(); });
  ::kill(child_, SIGTERM);
  ASSERT_NO_FATAL_FAILURE(AwaitZombie());
  EXPECT_TRUE(Observe(10).alive) << "how it ended is not known yet";
  Reap();
  EXPECT_FALSE(Observe(20).alive);
  EXPECT_TRUE(Observe(20).ended_orderly);
}

TEST_F(WatchedRanksTest, ExitCodesAndOtherSignalsAreFailures) {
  if (!KernelReportsExitStatus()) GTEST_SKIP() << "this kernel does not report how a process ended";
  for (const int signal : {0, SIGKILL, SIGSEGV}) {
    Start([signal] {
      if (signal == 0) ::_exit(3);
      ::pause();
    });
    if (signal != 0) ::kill(child_, signal);
    ASSERT_NO_FATAL_FAILURE(AwaitZombie());
    Reap();
    EXPECT_FALSE(Observe(10).alive) << signal;
    EXPECT_FALSE(Observe(10).ended_orderly) << signal;
  }
}

TEST_F(WatchedRanksTest, AParentThatDoesNotReapHidesADeathForOneSecondOnly) {
  Start([] { ::_exit(3); });
  ASSERT_NO_FATAL_FAILURE(AwaitZombie());
  EXPECT_TRUE(Observe(10).alive);
  EXPECT_TRUE(Observe(1000).alive);
  EXPECT_FALSE(Observe(1010).alive);
  EXPECT_FALSE(Observe(1010).ended_orderly);
  Reap();
}

}  // namespace
}  // namespace holdfast::agent
