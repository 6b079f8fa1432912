// Reads the metrics of a real agent over HTTP while it works.

#include "agent/server/metrics.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/agent/pipeline/harness.h"
#include "tests/agent/server/cluster.h"
#include "tests/base/metrics/scrape.h"

namespace holdfast::agent {
namespace {
using coord::Scrape;
using ::testing::HasSubstr;

constexpr uint64_t kTensorBytes = 3 << 20;

/// Returns the address of the metrics from the agent's log; the agent chooses a free port.
std::string MetricsAddress(const TestCluster& cluster) {
  const std::string log = cluster.AgentLog(0);
  const std::string before = "MetricsListening address=";
  const size_t at = log.find(before);
  if (at == std::string::npos) return "";
  const size_t begin = at + before.size();
  return log.substr(begin, log.find_first_of(" \n", begin) - begin);
}

TEST(AgentMetricsTest, FollowASave) {
  TestCluster cluster;
  ASSERT_TRUE(cluster.StartCoordinator().ok());
  const Status started =
      cluster.StartAgent(0, "",
                         {"metrics.listen=127.0.0.1:0", "limits.disk_bytes_per_job=1GiB",
                          "limits.arena_bytes_per_job=48MiB"});
  ASSERT_TRUE(started.ok()) << started.ToString();
  ASSERT_TRUE(Eventually([&] { return !MetricsAddress(cluster).empty(); })) << cluster.AgentLog(0);
  const std::string address = MetricsAddress(cluster);

  const Scrape idle(address);
  EXPECT_EQ(idle.Value("holdfast_agent_arena_budget_bytes"), 64 << 20);
  EXPECT_EQ(idle.Value("holdfast_agent_arena_reserved_bytes"), 0);
  EXPECT_EQ(idle.Value("holdfast_agent_trainers"), 0);
  EXPECT_EQ(idle.Value("holdfast_agent_disk_shards"), 0);
  EXPECT_GT(idle.Value("holdfast_agent_disk_free_bytes").value_or(0), 0);
  EXPECT_FALSE(idle.Value(R"(holdfast_agent_workers{phase="running"})").has_value())
      << "this agent launches no workers";

  Result<TestTrainer> trainer = Fail(UnavailableError("not tried"));
  ASSERT_TRUE(Eventually([&] {
    trainer = TestTrainer::Connect(cluster.Socket(0), TestTrainer::Options());
    return trainer.has_value();
  }));
  ASSERT_TRUE(trainer->Save(7, kTensorBytes));
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 7, Tier::kDisk)) << cluster.AgentLog(0);

  const Scrape saved(address);
  EXPECT_GT(saved.Value("holdfast_agent_arena_reserved_bytes").value_or(0), kTensorBytes);
  EXPECT_EQ(saved.Value("holdfast_agent_trainers"), 1);
  EXPECT_EQ(saved.Value(R"(holdfast_agent_slots{holdfast_job="job",state="sealed"})"), 1);
  EXPECT_EQ(saved.Value(R"(holdfast_agent_slots{holdfast_job="job",state="leased"})"), 0);
  EXPECT_EQ(saved.Value(R"(holdfast_agent_sealed_step{holdfast_job="job"})"), 7);
  EXPECT_EQ(saved.Value("holdfast_agent_disk_shards"), 1);
  EXPECT_EQ(saved.Value(R"(holdfast_agent_job_arena_bytes{holdfast_job="job"})"),
            saved.Value("holdfast_agent_arena_reserved_bytes"));
  EXPECT_EQ(saved.Value("holdfast_agent_job_arena_limit_bytes"), 48 << 20);
  EXPECT_EQ(saved.Value(R"(holdfast_agent_job_disk_bytes{holdfast_job="job"})"),
            MakeImage(trainer->Identity(7), kTensorBytes).size());
  EXPECT_EQ(saved.Value("holdfast_agent_job_disk_limit_bytes"), 1 << 30);
  EXPECT_EQ(saved.Value("holdfast_agent_peer_sent_bytes_total"), 0) << "a single node";
  EXPECT_TRUE(Eventually([&] {
    return Scrape(address).Value(R"(holdfast_agent_telemetry_digests_total{outcome="sent"})") > 0.0;
  }));

  std::set<std::string> documented;
  for (const coord::MetricSpec* spec : AgentMetrics()) documented.insert(std::string(spec->name));
  EXPECT_EQ(saved.Names(), documented);
  if (!coord::HasPromtool()) GTEST_SKIP() << "promtool (package prometheus) is not installed";
  EXPECT_EQ(coord::CheckByPromtool(saved.page()), "");
}

TEST(AgentMetricsTest, AreDocumented) {
  std::ifstream file(std::string(HOLDFAST_SOURCE_DIR) + "/docs/metrics.md");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, HasSubstr(DescribeMetrics(AgentMetrics())));
}

}  // namespace
}  // namespace holdfast::agent
