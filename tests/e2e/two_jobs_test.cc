// Two jobs on the same nodes, with parity shards in the same groups. Faults of one job do not
// disturb the other: its bytes, its pace, its processes.

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

#include "testing/cluster/training.h"
#include "tests/e2e/cluster_test.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
constexpr milliseconds kTimeout(120'000);
constexpr int kNodes = 4;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

class TwoJobsTest : public ClusterTest {
 protected:
  void SetUp() override {
    options_.nodes = kNodes;
    options_.coordinator_settings = {"peers.enabled=true", "peers.group_nodes=4"};
    ASSERT_NO_FATAL_FAILURE(StartServers());
  }

  static TrainingOptions JobOf(const std::string& name, uint64_t steps, uint64_t seed) {
    TrainingOptions job;
    job.job = name;
    job.world = kNodes;
    job.steps = steps;
    job.seed = seed;
    job.step_sleep_ms = 50;
    return job;
  }
  static void ExpectFinalBytes(Training& training, const TrainingOptions& job) {
    const Status finished = training.AwaitFinish(kTimeout);
    ASSERT_TRUE(finished.ok()) << finished.ToString() << training.LogTail();
    const auto expected = UninterruptedParameters(job, kTimeout);
    const auto actual = training.FinalParameters();
    ASSERT_TRUE(expected && actual);
    EXPECT_TRUE(*actual == *expected) << job.job << ": final parameters differ";
  }
  /// Ends all ranks and starts them again, as a launcher does after the failure of one.
  static void Restart(Training& training) {
    training.KillAll();
    ASSERT_TRUE(training.Start().ok());
    ASSERT_TRUE(training.AwaitStep(1, kTimeout)) << training.LogTail();
    for (const Restored& rank : training.restored()) EXPECT_GT(rank.step, 0U);
  }
  std::string Shown(const std::vector<std::string>& arguments) const {
    const auto result = cluster_->Cli(arguments);
    return result ? result->out : result.error().ToString();
  }
};

TEST_F(TwoJobsTest, FaultsOfOneJobDoNotDisturbTheOther) {
  const TrainingOptions steady_job = JobOf("steady", 500, 1);
  const TrainingOptions faulty_job = JobOf("faulty", 120, 2);
  Training steady(&*cluster_, steady_job);
  Training faulty(&*cluster_, faulty_job);
  ASSERT_TRUE(steady.Start().ok());
  ASSERT_TRUE(faulty.Start().ok());
  ASSERT_TRUE(faulty.AwaitStep(40, kTimeout)) << faulty.LogTail();
  const std::vector<double> before = steady.step_ms();

  faulty.KillRank(1);
  ASSERT_TRUE(faulty.AwaitFailure(kTimeout));
  ASSERT_NO_FATAL_FAILURE(Restart(faulty));
  ASSERT_TRUE(faulty.AwaitStep(60, kTimeout)) << faulty.LogTail();
  faulty.rank(2).Signal(SIGSTOP);
  const auto noted = [&] {
    return Shown({"incidents", "--job", "faulty", "-o", "json"}).find("hang") != std::string::npos;
  };
  EXPECT_TRUE(WaitUntil(noted, milliseconds(60'000)));
  ASSERT_NO_FATAL_FAILURE(Restart(faulty));
  const std::vector<double> all = steady.step_ms();
  ASSERT_LT(steady.newest_step(), steady_job.steps) << "the job must run during all faults";
  ASSERT_GT(before.size(), 10U);
  const std::vector<double> during(all.begin() + static_cast<std::ptrdiff_t>(before.size()),
                                   all.end());
  ExpectFinalBytes(faulty, faulty_job);

  ExpectFinalBytes(steady, steady_job);
  EXPECT_EQ(steady.start_count(), 1);
  const auto incidents =
      nlohmann::json::parse(Shown({"incidents", "--job", "steady", "-o", "json"}), nullptr, false);
  ASSERT_TRUE(incidents.is_object());
  for (const auto& incident : incidents["incidents"]) {
    EXPECT_EQ(incident.value("state", ""), "noted") << incident.dump(1);
    EXPECT_EQ(incident.dump().find("hang"), std::string::npos) << incident.dump(1);
  }
  // Most of a step is a pause, so other load hardly changes the median.
  EXPECT_LT(Median(during), 1.5 * Median(before));
  RecordProperty("pace", std::to_string(Median(during) / Median(before)));
}

}  // namespace
}  // namespace holdfast::local
