#include "agent/pipeline/trainer_processes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

#include "agent/pipeline/change_signal.h"
#include "agent/pipeline/loop_queue.h"
#include "base/process.h"
#include "tests/agent/pipeline/harness.h"

namespace holdfast::agent {
namespace {

class TrainerProcessesTest : public testing::Test {
 protected:
  ~TrainerProcessesTest() override { RemoveTree(dir_); }
  void Join(TrainerProcesses& processes) {
    processes.OnJoined(rank_, ::getpid(), PidFdOf(::getpid()).value(), Incarnation{3});
  }

  const std::string dir_ = MakeTempDir();
  const std::string file_ = dir_ + "/trainers";
  const RankKey rank_{"job", Rank{2}};
  const pid_t other_ = ::getpid() + 1;
};

TEST_F(TrainerProcessesTest, ARunningProcessKeepsItsRankFromOthers) {
  TrainerProcesses processes(file_, ProcessTable::Kernel());
  EXPECT_FALSE(processes.HasRecordOf(rank_));
  Join(processes);
  EXPECT_TRUE(processes.IsRunning(rank_));
  EXPECT_EQ(processes.OtherProcessOf(rank_, other_), ::getpid());
  EXPECT_EQ(processes.OtherProcessOf(rank_, ::getpid()), std::nullopt);
  EXPECT_EQ(processes.OtherProcessOf({"job", Rank{1}}, other_), std::nullopt);
  processes.Sweep();
  EXPECT_TRUE(processes.IsRunning(rank_));
}

TEST_F(TrainerProcessesTest, AGoodbyeFreesTheRankAndTheProcessIsStillKnown) {
  TrainerProcesses processes(file_, ProcessTable::Kernel());
  Join(processes);
  processes.OnGoodbye(rank_, Incarnation{3});
  EXPECT_FALSE(processes.IsRunning(rank_));
  EXPECT_TRUE(processes.HasRecordOf(rank_));
  EXPECT_EQ(processes.OtherProcessOf(rank_, other_), std::nullopt);
  EXPECT_EQ(processes.JoinedBefore(rank_, ::getpid()), Incarnation{3});
  EXPECT_EQ(processes.JoinedBefore(rank_, other_), std::nullopt);
  EXPECT_EQ(processes.goodbyes().at(rank_), Incarnation{3});
  Join(processes);
  EXPECT_TRUE(processes.goodbyes().empty());
  processes.OnGoodbye(rank_, Incarnation{3});
  processes.ForgetGoodbyes("job");
  EXPECT_FALSE(processes.HasRecordOf(rank_));
}

TEST_F(TrainerProcessesTest, TheRecordSurvivesARestartOfTheAgent) {
  {
    TrainerProcesses processes(file_, ProcessTable::Kernel());
    Join(processes);
  }
  TrainerProcesses restarted(file_, ProcessTable::Kernel());
  restarted.Load();
  EXPECT_EQ(restarted.OtherProcessOf(rank_, other_), ::getpid());
  EXPECT_EQ(restarted.JoinedBefore(rank_, ::getpid()), Incarnation{3});
  restarted.ForgetIncarnations();
  EXPECT_EQ(restarted.JoinedBefore(rank_, ::getpid()), std::nullopt);
  EXPECT_TRUE(restarted.IsRunning(rank_));
}

TEST(ChangeSignalTest, AChangeBeforeTheWaitIsNotMissed) {
  ChangeSignal signal;
  const uint64_t seen = signal.count();
  signal.Raise();
  signal.AwaitMore(seen);
  auto waiter =
      std::async(std::launch::async, [&, now = signal.count()] { signal.AwaitMore(now); });
  EXPECT_EQ(waiter.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  signal.Raise();
  waiter.get();
}

TEST(LoopQueueTest, TasksThatAreStoppedDoNotRun) {
  LoopQueue loop;
  ASSERT_TRUE(loop.valid());
  int ran = 0;
  loop.Post([&] {
    ++ran;
    loop.Post([&] { ran += 10; });  // runs in the next turn
  });
  loop.Run();
  EXPECT_EQ(ran, 1);
  loop.Run();
  EXPECT_EQ(ran, 11);
  loop.Post([&] { ran += 100; });
  loop.Stop();
  loop.Post([&] { ran += 1000; });
  loop.Run();
  EXPECT_EQ(ran, 11);
  EXPECT_TRUE(loop.stopping());
}

}  // namespace
}  // namespace holdfast::agent
