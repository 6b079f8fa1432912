// The metrics of a real relay, scraped over HTTP.
#include "coordinator/relay/metrics.h"

#include <gmock/gmock.h>

#include <atomic>
#include <fstream>
#include <thread>
#include <vector>

#include "coordinator/relay/relay_server.h"
#include "tests/base/metrics/scrape.h"
#include "tests/coordinator/server/fake_agent.h"
#include "tests/coordinator/server/server_fixture.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

class RelayMetricsTest : public ServerFixture {
 protected:
  void SetUp() override {
    ServerFixture::SetUp();
    Start();
    relay::RelayOptions options;
    options.cluster = "test";
    options.listen = "unix:" + dir_ + "/r.sock";
    options.upstream = config_.listen;
    options.metrics.listen = "127.0.0.1:0";
    options.pending_bytes_max = pending_bytes_max_;
    auto started = relay::RelayServer::Start(options, Clock::Real());
    ASSERT_TRUE(started.has_value()) << started.error().ToString();
    relay_ = *std::move(started);
    ASSERT_TRUE(Eventually([&] { return Fetch("connected") == 1; }));
  }
  void TearDown() override {
    relay_.reset();
    ServerFixture::TearDown();
  }
  Scrape Fetch() const { return Scrape(relay_->metrics_address()); }
  double Fetch(const std::string& name) const {
    return Fetch().Value("holdfast_relay_" + name).value_or(-1);
  }

  size_t pending_bytes_max_ = relay::RelayOptions().pending_bytes_max;
  std::unique_ptr<relay::RelayServer> relay_;
};

/// A relay that refuses each message while another one is pending.
class OverloadedRelayTest : public RelayMetricsTest {
 protected:
  OverloadedRelayTest() { pending_bytes_max_ = 0; }
};

TEST_F(RelayMetricsTest, CountAgentsAndMessages) {
  EXPECT_EQ(Fetch("agents"), 0);
  FakeAgent a(relay_->endpoint(), "a");
  FakeAgent b(relay_->endpoint(), "b");
  for (FakeAgent* agent : {&a, &b}) {
    agent->Attach();
    ASSERT_TRUE(Eventually([&] { return !agent->Directives().empty(); }));
  }
  EXPECT_EQ(Fetch("agents"), 2);
  ASSERT_TRUE(Eventually([&] { return Fetch("messages_total") == 2; }));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(a.Report(a.NewReport(server_->epoch().value)).ok());
  EXPECT_TRUE(Eventually([&] { return Fetch("messages_total") == 5; }));
  EXPECT_GE(Fetch("batches_total"), 4);  // each report waits for its answer
  EXPECT_LE(Fetch("batches_total"), 5);
  EXPECT_EQ(Fetch("pending_bytes"), 0);
  EXPECT_EQ(Fetch("sessions_total"), 1);
  EXPECT_EQ(Fetch("refused_messages_total"), 0);
}

TEST_F(RelayMetricsTest, ShowThatTheCoordinatorIsLostAndBack) {
  FakeAgent a(relay_->endpoint(), "a");
  a.Attach();
  ASSERT_TRUE(Eventually([&] { return Fetch("agents") == 1; }));
  server_.reset();
  EXPECT_TRUE(Eventually([&] { return Fetch("connected") == 0 && Fetch("agents") == 0; }));
  FakeAgent b(relay_->endpoint(), "b");
  b.Attach();
  EXPECT_TRUE(Eventually([&] { return Fetch("refused_messages_total") == 1; }));
  Start();
  EXPECT_TRUE(Eventually([&] { return Fetch("connected") == 1; }));
  EXPECT_EQ(Fetch("sessions_total"), 2);
}

/// Agents repeat what an overloaded relay refuses: every version is committed, and no agent loses
/// its place.
TEST_F(OverloadedRelayTest, RefusedReportsAreRepeatedAndNothingIsLost) {
  constexpr uint32_t kAgents = 8;
  constexpr uint64_t kSteps = 5;
  std::vector<std::unique_ptr<FakeAgent>> agents;
  for (uint32_t i = 0; i < kAgents; ++i) {
    agents.push_back(std::make_unique<FakeAgent>(relay_->endpoint(), "n" + std::to_string(i)));
    ASSERT_TRUE(Eventually([&] {
      if (agents[i]->End() || !agents[i]->attaching()) agents[i]->Attach();
      return !agents[i]->Directives().empty();
    }));
    ASSERT_TRUE(agents[i]->Join("lm", "r1", i, kAgents).has_value());
  }
  const uint64_t refused = static_cast<uint64_t>(Fetch("refused_messages_total"));
  const uint64_t epoch = server_->epoch().value;
  std::atomic<uint64_t> repeated{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kAgents; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t step = 1; step <= kSteps; ++step) {
        pb::ReportRequest report = agents[i]->NewReport(epoch);
        ToProto(MakeReplica("lm", V(1, step), i, kAgents, Tier::kMemory), report.add_replicas());
        EXPECT_TRUE(Eventually([&] {
          const Status reported = agents[i]->Report(report);
          if (reported.ok()) return true;
          EXPECT_EQ(reported.code(), ErrorCode::kUnavailable) << reported.ToString();
          ++repeated;
          return false;
        }));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(repeated, 0U);
  EXPECT_EQ(Fetch("refused_messages_total"), static_cast<double>(refused + repeated));
  for (auto& agent : agents) {
    EXPECT_TRUE(Eventually([&] {
      return agent->StateOf("lm").committed[Tier::kMemory] == V(1, kSteps);
    })) << agent->node();
    EXPECT_FALSE(agent->End().has_value()) << agent->node();
  }
  EXPECT_EQ(Fetch("agents"), kAgents);
  EXPECT_EQ(Fetch("pending_bytes"), 0);
}

TEST_F(RelayMetricsTest, AreAllDocumented) {
  std::set<std::string> documented;
  for (const MetricSpec* spec : relay::RelayMetrics()) documented.insert(std::string(spec->name));
  EXPECT_EQ(Fetch().Names(), documented);
  std::ifstream file(std::string(HOLDFAST_SOURCE_DIR) + "/docs/metrics.md");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, HasSubstr(DescribeMetrics(relay::RelayMetrics())));
}

TEST_F(RelayMetricsTest, FollowTheRulesOfPrometheus) {
  if (!HasPromtool()) GTEST_SKIP() << "promtool (package prometheus) is not installed";
  EXPECT_EQ(CheckByPromtool(Fetch().page()), "");
}

}  // namespace
}  // namespace holdfast::coord
