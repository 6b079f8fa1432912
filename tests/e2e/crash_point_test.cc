// Kills a process at every crash point on the data path of a live training job, and restarts it.
// Then checks the rules of recovery:
//   - commits resume, and the newest durable version never regresses;
//   - after all processes are killed, all ranks restore the same durable version;
//   - training ends with the parameters of an uninterrupted run, byte for byte;
//   - every listed version passes a deep verify, and no unpublished file is left on the disks.

#include <gtest/gtest.h>

#include <cctype>
#include <csignal>
#include <filesystem>

#include "testing/cluster/observer.h"
#include "testing/cluster/training.h"
#include "tests/e2e/cluster_test.h"

namespace holdfast::local {
namespace {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
constexpr milliseconds kTimeout(60'000);
constexpr int kWorld = 2;

struct CrashCase {
  const char* point;  // and the number of the pass at which the process dies
  enum Where { kAgent, kCoordinator, kTrainer } where;
};

// Crash points in restores and joins are armed before a restart of the trainers, the others while
// training runs.
constexpr CrashCase kCases[] = {
    {"client.mid_copy:3", CrashCase::kTrainer},
    {"agent.after_begin_save:3", CrashCase::kAgent},
    {"agent.mid_copy:3", CrashCase::kAgent},
    {"agent.before_seal:3", CrashCase::kAgent},
    {"agent.after_seal:3", CrashCase::kAgent},
    {"agent.before_report_memory:3", CrashCase::kAgent},
    {"agent.before_report_disk:3", CrashCase::kAgent},
    {"agent.after_report_disk:3", CrashCase::kAgent},
    {"agent.mid_restore:1", CrashCase::kAgent},
    {"agent.mid_stripe:3", CrashCase::kAgent},
    {"agent.parity_built:3", CrashCase::kAgent},
    {"agent.before_report_peer:3", CrashCase::kAgent},
    {"arena.after_lease:3", CrashCase::kAgent},
    {"arena.mid_seal:3", CrashCase::kAgent},
    {"arena.after_seal:3", CrashCase::kAgent},
    {"arena.after_free:3", CrashCase::kAgent},
    {"volume.after_create:3", CrashCase::kAgent},
    {"volume.after_allocate:3", CrashCase::kAgent},
    {"volume.mid_write:3", CrashCase::kAgent},
    {"volume.after_drain:3", CrashCase::kAgent},
    {"volume.after_sync:3", CrashCase::kAgent},
    {"volume.after_rename:3", CrashCase::kAgent},
    {"volume.after_dir_sync:3", CrashCase::kAgent},
    {"volume.after_seal_write:3", CrashCase::kAgent},
    {"volume.after_seal_rename:3", CrashCase::kAgent},
    {"volume.after_publish:3", CrashCase::kAgent},
    {"volume.remove_after_tombstone:2", CrashCase::kAgent},
    {"volume.remove_mid_unlink:2", CrashCase::kAgent},
    {"volume.remove_done:2", CrashCase::kAgent},
    {"coordinator.before_commit:3", CrashCase::kCoordinator},
    {"coordinator.after_commit_before_reply:3", CrashCase::kCoordinator},
    {"coordinator.after_publish:3", CrashCase::kCoordinator},
    {"coordinator.after_join:1", CrashCase::kCoordinator},
    {"coordinator.restore_decided:1", CrashCase::kCoordinator},
};

class CrashPointTest : public ClusterTest, public ::testing::WithParamInterface<CrashCase> {
 protected:
  void SetUp() override {
    options_.nodes = kWorld;
    options_.arena_bytes = 64ULL << 20;
    options_.keep_last = 2;
    training_.world = kWorld;
    training_.steps = 60;
    training_.step_sleep_ms = 25;
  }

  /// The parameters of an uninterrupted run. Computed once per process, since all cases share them.
  const std::string& Expected() {
    static const std::string expected = [this] {
      auto parameters = UninterruptedParameters(training_, kTimeout);
      EXPECT_TRUE(parameters.has_value()) << parameters.error().ToString();
      return parameters.value_or("");
    }();
    return expected;
  }

  /// Arms the crash point, waits until the process has died there, and restarts the process.
  Status DieThere(Cluster& cluster, Training& training) {
    const CrashCase& crash = GetParam();
    std::string point = crash.point;
    bool during_restart = point.rfind("agent.mid_restore", 0) == 0 ||
                          point.rfind("coordinator.after_join", 0) == 0 ||
                          point.rfind("coordinator.restore_decided", 0) == 0;
    if (during_restart) training.KillAll();
    if (crash.where == CrashCase::kTrainer) {
      HOLDFAST_RETURN_IF_ERROR(training.Start(point, 1));
      if (!training.AwaitFailure(kTimeout)) return DeadlineExceededError("no trainer died");
      return training.Start();
    }
    bool agent = crash.where == CrashCase::kAgent;
    // Only a restore from disk passes this point, so the memory must be lost.
    if (point.rfind("agent.mid_restore", 0) == 0) cluster.KillKeeper(1);
    Process& victim = agent ? cluster.agent(1) : cluster.coordinator();
    victim.Kill();
    HOLDFAST_RETURN_IF_ERROR(agent ? cluster.StartAgent(1, point)
                                   : cluster.StartCoordinator(point));
    if (during_restart) HOLDFAST_RETURN_IF_ERROR(training.Start());
    if (!victim.WaitFor(kTimeout)) return DeadlineExceededError("the crash point was never passed");
    HOLDFAST_RETURN_IF_ERROR(agent ? cluster.StartAgent(1) : cluster.StartCoordinator());
    return agent ? cluster.AwaitAgent(1) : Status::Ok();
  }

  static std::vector<std::string> Leftovers(const Cluster& cluster) {
    std::vector<std::string> found;
    for (int node = 0; node < cluster.nodes(); ++node) {
      for (const std::string& dir : cluster.DataDirs(node)) {
        for (const auto& entry : fs::recursive_directory_iterator(dir)) {
          std::string name = entry.path().filename();
          bool leftover = name.find(".tmp.") != std::string::npos ||
                          name.find(".deleted.") != std::string::npos;
          if (leftover) found.push_back(entry.path());
        }
        if (fs::exists(dir + "/quarantine") && !fs::is_empty(dir + "/quarantine")) {
          found.push_back(dir + "/quarantine");
        }
      }
    }
    return found;
  }

  TrainingOptions training_;
};

TEST_P(CrashPointTest, RecoversByTheRules) {
  ASSERT_FALSE(Expected().empty());
  Cluster cluster(options_);
  Status status = cluster.Start();
  ASSERT_TRUE(status.ok()) << status.ToString();
  Training training(&cluster, training_);
  ASSERT_TRUE(training.Start().ok());
  auto durable = AwaitCommit(cluster, "charlm", Tier::kDisk, std::nullopt, kTimeout);
  ASSERT_TRUE(durable.has_value()) << durable.error().ToString() << training.LogTail();

  status = DieThere(cluster, training);
  ASSERT_TRUE(status.ok()) << status.ToString() << training.LogTail();
  auto later = AwaitCommit(cluster, "charlm", Tier::kDisk, *durable, kTimeout);
  ASSERT_TRUE(later.has_value()) << later.error().ToString() << training.LogTail();

  training.KillAll();
  auto summary = Observe(cluster, "charlm");
  ASSERT_TRUE(summary.has_value()) << summary.error().ToString();
  ASSERT_TRUE(summary->disk_committed.has_value());
  EXPECT_GE(*summary->disk_committed, *later) << "the newest durable version regressed";
  cluster.KillEverything();
  ASSERT_TRUE(cluster.Start().ok());
  ASSERT_TRUE(training.Start().ok());
  status = training.AwaitFinish(kTimeout);
  ASSERT_TRUE(status.ok()) << status.ToString();
  std::vector<Restored> restored = training.restored();
  ASSERT_EQ(restored.size(), static_cast<size_t>(kWorld));
  EXPECT_EQ(restored[0].step, restored[1].step);
  EXPECT_GE(restored[0].step, summary->disk_committed->step.value);
  EXPECT_TRUE(training.FinalParameters().value_or("") == Expected()) << "parameters differ";

  auto verify = cluster.Cli({"verify", "charlm", "--deep"});
  ASSERT_TRUE(verify.has_value());
  EXPECT_EQ(verify->exit_code, 0) << verify->out << verify->errors;
  cluster.KillEverything();
  // Another start must clean up what the last kill interrupted.
  ASSERT_TRUE(cluster.Start().ok());
  cluster.agent(0).Signal(SIGTERM);
  cluster.agent(1).Signal(SIGTERM);
  EXPECT_TRUE(cluster.agent(0).WaitFor(kTimeout).has_value()) << "agent ignores SIGTERM";
  EXPECT_TRUE(cluster.agent(1).WaitFor(kTimeout).has_value()) << "agent ignores SIGTERM";
  EXPECT_EQ(Leftovers(cluster), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(EveryPoint, CrashPointTest, ::testing::ValuesIn(kCases),
                         [](const auto& crash) {
                           std::string name = crash.param.point;
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace holdfast::local
