// The end of jobs: the last version reaches every tier although no newer one follows, the memory is
// released, and a forgotten job is removed from every node.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "testing/cluster/observer.h"
#include "testing/cluster/training.h"
#include "tests/e2e/cluster_test.h"
#include "tests/e2e/saving_job.h"

namespace holdfast::local {
namespace {
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::milliseconds kTimeout(120'000);

class EndOfJobTest : public ClusterTest {
 protected:
  void StartCluster(int nodes) {
    options_.nodes = nodes;
    options_.arena_bytes = 64ULL << 20;
    options_.coordinator_settings = {"jobs.release_after_s=1"};
    StartServers();
  }
  std::string Shown(const std::vector<std::string>& command) {
    const auto result = cluster_->Cli(command);
    return result ? result->out + result->errors : result.error().ToString();
  }
};

TEST_F(EndOfJobTest, ShortJobsInSequenceAllReachEveryTier) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(4));
  constexpr int kJobs = 16;
  for (int i = 0; i < kJobs; ++i) {
    TrainingOptions options;
    options.job = fmt::format("f{}", i);
    options.world = 4;
    options.steps = 25;
    options.step_sleep_ms = 5;
    Training training(&*cluster_, options);
    ASSERT_TRUE(training.Start().ok());
    const Status finished = training.AwaitFinish(kTimeout);
    ASSERT_TRUE(finished.ok()) << finished.ToString() << training.LogTail();
  }
  for (int i = 0; i < kJobs; ++i) {
    const std::string job = fmt::format("f{}", i);
    JobSummary summary;
    const bool everywhere = WaitUntil(
        [&] {
          const auto observed = Observe(*cluster_, job);
          if (!observed) return false;
          summary = *observed;
          return summary.memory_committed && summary.peer_committed == summary.memory_committed &&
                 summary.disk_committed == summary.memory_committed;
        },
        kTimeout);
    EXPECT_TRUE(everywhere) << job << "\n" << Shown({"versions", job}) << Shown({"status", job});
  }
  EXPECT_TRUE(WaitUntil(
      [&] {
        const auto status = cluster_->Cli({"status"});
        return status && status->exit_code == 0;
      },
      kTimeout))
      << Shown({"status"});
  EXPECT_THAT(Shown({"status"}), HasSubstr("finished"));
  // A restarted coordinator shows them as finished.
  cluster_->coordinator().Kill();
  ASSERT_TRUE(cluster_->StartCoordinator().ok());
  for (int node = 0; node < 4; ++node) ASSERT_TRUE(cluster_->AwaitAgent(node).ok());
  EXPECT_TRUE(WaitUntil(
      [&] {
        const auto status = cluster_->Cli({"status"});
        return status && status->exit_code == 0;
      },
      kTimeout))
      << Shown({"status"});
}

TEST_F(EndOfJobTest, AWaitForTheDiskEndsWithoutANewerVersion) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(1));
  SavingJob job(*cluster_, 1);
  ASSERT_TRUE(job.Open().ok());
  for (int i = 0; i < 20; ++i) job.Save();
  // Finds the newest step that was not skipped for lack of a slot.
  ASSERT_TRUE(WaitUntil([&] { return job.Newest(v1::Tier::kMemory).has_value(); }, kTimeout));
  uint64_t step = job.step();
  for (; step > 0 && !job.client(0).Wait(step, v1::Tier::kMemory, kTimeout).ok(); --step) {
  }
  const auto durable = job.client(0).Wait(step, v1::Tier::kDisk, kTimeout);
  EXPECT_TRUE(durable.ok()) << durable.ToString() << Shown({"versions"});
}

TEST_F(EndOfJobTest, AForgottenJobIsRemovedAlsoFromANodeThatWasDown) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(2));
  const auto train = [&](const std::string& name) {
    TrainingOptions options;
    options.job = name;
    options.world = 2;
    options.steps = 10;
    Training training(&*cluster_, options);
    ASSERT_TRUE(training.Start().ok());
    const Status finished = training.AwaitFinish(kTimeout);
    ASSERT_TRUE(finished.ok()) << finished.ToString() << training.LogTail();
  };
  ASSERT_NO_FATAL_FAILURE(train("keep"));
  ASSERT_NO_FATAL_FAILURE(train("gone"));
  const auto files_of = [&](int node, const std::string& job) {
    size_t count = 0;
    for (const std::string& dir : cluster_->DataDirs(node)) {
      std::error_code error;
      std::error_code ignored;
      for (std::filesystem::recursive_directory_iterator at(dir, error), end; !error && at != end;
           at.increment(error)) {
        const bool of_job = at->path().string().find("/" + job + "/") != std::string::npos;
        if (of_job && at->is_regular_file(ignored)) ++count;
      }
      if (error) ++count;  // the agent removes files: more may be left
    }
    return count;
  };
  for (const std::string job : {"keep", "gone"}) {
    ASSERT_TRUE(WaitUntil(
        [&] {
          const auto summary = Observe(*cluster_, job);
          return summary && summary->disk_committed &&
                 summary->disk_committed == summary->memory_committed;
        },
        kTimeout));
  }
  cluster_->agent(1).Kill();
  ASSERT_GT(files_of(1, "gone"), 0U);
  ASSERT_TRUE(WaitUntil([&] { return Shown({"status"}).find("NODE_DOWN") != std::string::npos; },
                        kTimeout));
  EXPECT_THAT(Shown({"forget", "gone"}), HasSubstr("--yes"));
  auto forgotten = cluster_->Cli({"forget", "gone", "--yes"});
  // Directly after the loss of a node, it is unknown whether its ranks have ended.
  EXPECT_TRUE(WaitUntil(
      [&] {
        if (forgotten && forgotten->exit_code == 0) return true;
        forgotten = cluster_->Cli({"forget", "gone", "--yes"});
        return false;
      },
      kTimeout));
  ASSERT_TRUE(forgotten.has_value());
  EXPECT_EQ(forgotten->exit_code, 0) << forgotten->errors;
  EXPECT_THAT(forgotten->out, HasSubstr("n1"));
  EXPECT_THAT(Shown({"status"}), Not(HasSubstr("gone ")));
  ASSERT_TRUE(cluster_->StartAgent(1).ok());
  ASSERT_TRUE(cluster_->AwaitAgent(1).ok());
  EXPECT_TRUE(WaitUntil([&] { return files_of(0, "gone") + files_of(1, "gone") == 0; }, kTimeout))
      << files_of(0, "gone") << " " << files_of(1, "gone");
  EXPECT_GT(files_of(1, "keep"), 0U);
}

}  // namespace
}  // namespace holdfast::local
