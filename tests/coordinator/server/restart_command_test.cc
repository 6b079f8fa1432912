#include "coordinator/server/restart_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace holdfast::coord {
namespace {
using std::chrono::milliseconds;
using ::testing::HasSubstr;

struct Outcome {
  uint64_t incident = 0;
  bool ok = false;
  std::string how;
};

class RestartCommandTest : public ::testing::Test {
 protected:
  RestartCommandTest() {
    incident_.id = 12;
    incident_.job = "gpt";
    incident_.kind = "dead";
    incident_.what = "rank 5 is dead; `rm -rf /`";
    incident_.ranks = {Rank{5}, Rank{7}};
    incident_.nodes = {"n1"};
  }
  Outcome RunOnce(const std::string& command, milliseconds timeout = milliseconds(60'000)) {
    RestartCommand runner(command, timeout, Clock::Real());
    Mutex mutex;
    CondVar changed;
    std::optional<Outcome> outcome;
    runner.Run(incident_);  // before Start(), as for a fault during the coordinator's start
    runner.Start([&](uint64_t incident, bool ok, std::string how) {
      MutexLock lock(mutex);
      outcome = Outcome{incident, ok, std::move(how)};
      changed.NotifyAll();
    });
    {
      MutexLock lock(mutex);
      for (int i = 0; i < 600 && !outcome; ++i) changed.WaitFor(mutex, milliseconds(100));
    }
    runner.Stop();
    return outcome.value_or(Outcome{0, false, "no result was reported"});
  }

  IncidentRecord incident_;
};

TEST_F(RestartCommandTest, ReportsHowTheCommandEnded) {
  const Outcome fine = RunOnce("true");
  EXPECT_TRUE(fine.ok) << fine.how;
  EXPECT_EQ(fine.incident, 12U);
  EXPECT_EQ(fine.how, "ended with exit code 0");
  const Outcome failed = RunOnce("exit 7");
  EXPECT_FALSE(failed.ok);
  EXPECT_EQ(failed.how, "ended with exit code 7");
  const Outcome killed = RunOnce("kill -9 $$");
  EXPECT_FALSE(killed.ok);
  EXPECT_EQ(killed.how, "was killed by signal 9");
}

TEST_F(RestartCommandTest, ACommandThatDoesNotEndIsKilledWithItsChildren) {
  char name[] = "/tmp/hfc-XXXXXX";
  const std::string folder = ::mkdtemp(name);
  const Outcome outcome =
      RunOnce("sleep 1000 & echo $! > " + folder + "/child; wait", milliseconds(300));
  EXPECT_FALSE(outcome.ok);
  EXPECT_EQ(outcome.how, "did not end within 300 ms and was killed");
  std::ifstream file(folder + "/child");
  int child = 0;
  file >> child;
  ASSERT_GT(child, 0);
  // The orphan has ended. It may be a zombie until init reaps it.
  for (int i = 0; i < 500; ++i) {
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
    if (text.empty() || text.find(") Z") != std::string::npos) break;
    ASSERT_LT(i, 499) << text;
    ::usleep(10'000);
  }
  std::filesystem::remove_all(folder);
}

TEST_F(RestartCommandTest, TheEnvironmentDescribesTheIncident) {
  char name[] = "/tmp/hfc-XXXXXX";
  const std::string folder = ::mkdtemp(name);
  EXPECT_TRUE(RunOnce("echo \"$HOLDFAST_JOB|$HOLDFAST_INCIDENT|$HOLDFAST_KIND|$HOLDFAST_WHAT|"
                      "$HOLDFAST_RANKS|$HOLDFAST_NODES\" > " +
                      folder + "/environment")
                  .ok);
  std::ifstream file(folder + "/environment");
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "gpt|12|dead|rank 5 is dead; `rm -rf /`|5,7|n1");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace holdfast::coord
