// Runs one drill (HOLDFAST_DRILL) on a new cluster. A real training job suffers the failure and
// runs to its end, with the final parameters of an uninterrupted run, byte for byte.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "testing/cluster/cluster.h"
#include "testing/cluster/observer.h"
#include "testing/cluster/small_disk.h"
#include "testing/cluster/training.h"
#include "tests/e2e/drills.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
constexpr milliseconds kTimeout(120'000);

class DrillTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = MakeTempDir("hf").value();
    options_.root = root_;
    options_.arena_bytes = 64ULL << 20;
  }
  void TearDown() override {
    std::error_code ignored;
    if (std::getenv("HOLDFAST_KEEP") == nullptr) std::filesystem::remove_all(root_, ignored);
  }

  TrainingOptions TrainingFor(const std::string& job, uint64_t step_sleep_ms) {
    TrainingOptions training;
    training.job = job;
    training.steps = 160;
    training.step_sleep_ms = step_sleep_ms;
    return training;
  }

  std::string root_;
  ClusterOptions options_;
};

TEST_F(DrillTest, EndsBitIdentical) {
  const char* name = std::getenv("HOLDFAST_DRILL");
  if (name == nullptr) GTEST_SKIP() << "HOLDFAST_DRILL names the drill to run";
  const auto& drills = AllDrills();
  auto drill = std::find_if(drills.begin(), drills.end(), [&](auto& d) { return d.name == name; });
  ASSERT_NE(drill, drills.end()) << "unknown drill " << name;

  std::optional<SmallDisk> small_disk;
  if (drill->name == "full-disk") {
    auto made = SmallDisk::Make(root_, 64ULL << 20);
    if (!made) GTEST_SKIP() << made.error().ToString();
    small_disk.emplace(std::move(*made));
    options_.data_dir_of[kSmallDiskNode] = small_disk->path() + "/data";
  }
  // One of the drills that restore from disk stripes shards over several directories.
  if (drill->name == "kill-everything") options_.data_dirs = 3;
  if (std::getenv("HOLDFAST_NO_PEERS") != nullptr) {
    options_.agent_settings.push_back("peers.enabled=false");
  }
  const auto expected = UninterruptedParameters(TrainingFor("plain", 0), kTimeout);
  ASSERT_TRUE(expected.has_value()) << expected.error().ToString();

  Cluster cluster(options_);
  Status started = cluster.Start();
  ASSERT_TRUE(started.ok()) << started.ToString();
  Training training(&cluster, TrainingFor("charlm", 75));
  ASSERT_TRUE(training.Start().ok());
  ASSERT_TRUE(training.AwaitStep(3, kTimeout)) << training.LogTail();
  DrillContext context{cluster, training, "charlm",
                       [](const std::string& line) { std::printf("%s\n", line.c_str()); }};
  auto report = drill->run(context);
  ASSERT_TRUE(report.has_value()) << report.error().ToString();
  ASSERT_FALSE(report->skipped) << report->note;

  Status finished = training.AwaitFinish(kTimeout);
  ASSERT_TRUE(finished.ok()) << finished.ToString();
  auto actual = training.FinalParameters();
  ASSERT_TRUE(actual.has_value());
  EXPECT_TRUE(*actual == *expected) << "final parameters differ";

  // The newest durable version must be readable completely.
  auto verify = cluster.Cli({"verify", "charlm", "--deep"});
  ASSERT_TRUE(verify.has_value());
  EXPECT_EQ(verify->exit_code, 0) << verify->out << verify->errors;
}

}  // namespace
}  // namespace holdfast::local
