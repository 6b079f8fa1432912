// The metrics of a real coordinator, scraped over HTTP.

#include "coordinator/server/metrics.h"

#include <gmock/gmock.h>

#include <fstream>

#include "coordinator/server/coordinator_server.h"
#include "tests/base/metrics/scrape.h"
#include "tests/coordinator/server/fake_agent.h"
#include "tests/coordinator/server/server_fixture.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

class MetricsTest : public ServerFixture {
 protected:
  void SetUp() override {
    ServerFixture::SetUp();
    config_.metrics.listen = "127.0.0.1:0";
    Start();
  }
  Scrape Fetch() { return Scrape(server_->metrics_address()); }

  /// Attaches the agent; the one rank of the job "gpt" saves version 1-5 to memory.
  void CommitInMemory(FakeAgent& a) {
    a.Attach();
    ASSERT_TRUE(Eventually([&] { return Fetch().Value(R"(holdfast_node_up{node="a"})") == 1; }));
    ASSERT_TRUE(a.Join("gpt", "run-1", 0, 1).has_value());
    ASSERT_TRUE(
        a.Hold(server_->epoch().value, {MakeReplica("gpt", V(1, 5), 0, 1, Tier::kMemory)}).ok());
  }
};

TEST_F(MetricsTest, ShowTheProgressOfAJob) {
  const Scrape before = Fetch();
  EXPECT_EQ(before.Value("holdfast_coordinator_epoch"), 1);
  EXPECT_EQ(before.Value("holdfast_coordinator_loaded"), 1);
  EXPECT_FALSE(before.Value(R"(holdfast_job_incarnation{holdfast_job="gpt"})").has_value());

  FakeAgent a(server_->endpoint(), "a");
  a.Attach();
  ASSERT_TRUE(Eventually([&] { return Fetch().Value(R"(holdfast_node_up{node="a"})") == 1; }));
  ASSERT_TRUE(a.Join("gpt", "run-1", 0, 2).has_value());
  const uint64_t epoch = server_->epoch().value;
  const Scrape joined = Fetch();
  EXPECT_EQ(joined.Value(R"(holdfast_job_incarnation{holdfast_job="gpt"})"), 1);
  EXPECT_EQ(joined.Value(R"(holdfast_job_ranks{holdfast_job="gpt"})"), 2);
  EXPECT_EQ(joined.Value(R"(holdfast_job_ranks_joined{holdfast_job="gpt"})"), 1);
  EXPECT_FALSE(
      joined.Value(R"(holdfast_job_committed_step{holdfast_job="gpt",tier="memory"})").has_value());

  ASSERT_TRUE(a.Join("gpt", "run-1", 1, 2).has_value());
  ASSERT_TRUE(a.Hold(epoch, {MakeReplica("gpt", V(1, 5), 0, 2, Tier::kMemory)}).ok());
  const Scrape partial = Fetch();
  EXPECT_EQ(partial.Value(R"(holdfast_job_pending_versions{holdfast_job="gpt"})"), 1);
  EXPECT_EQ(partial.Value(R"(holdfast_job_newest_step{holdfast_job="gpt"})"), 5);
  ASSERT_TRUE(a.Hold(epoch, {MakeReplica("gpt", V(1, 5), 1, 2, Tier::kMemory)}).ok());
  const Scrape complete = Fetch();
  EXPECT_EQ(complete.Value(R"(holdfast_job_pending_versions{holdfast_job="gpt"})"), 0);
  EXPECT_EQ(complete.Value(R"(holdfast_job_committed_step{holdfast_job="gpt",tier="memory"})"), 5);
  const double age =
      complete.Value(R"(holdfast_job_committed_age_seconds{holdfast_job="gpt",tier="memory"})")
          .value_or(-1);
  EXPECT_GE(age, 0);
  EXPECT_LT(age, 600) << "seconds, not nanoseconds";
  EXPECT_EQ(complete.Value(R"(holdfast_job_restorable{holdfast_job="gpt"})"), 1);
  EXPECT_EQ(complete.Value(R"(holdfast_job_restorable_step{holdfast_job="gpt"})"), 5);
  EXPECT_EQ(complete.Value(R"(holdfast_job_versions_committed_total{holdfast_job="gpt"})"), 1);
  EXPECT_GT(complete.Value(R"(holdfast_node_held_bytes{node="a",tier="memory"})").value_or(0), 0);
  EXPECT_FALSE(
      complete.Value(R"(holdfast_job_committed_step{holdfast_job="gpt",tier="disk"})").has_value());

  a.Detach();
  ASSERT_TRUE(Eventually([&] { return Fetch().Value(R"(holdfast_node_up{node="a"})") == 0; }));
  EXPECT_EQ(Fetch().Value(R"(holdfast_job_restorable{holdfast_job="gpt"})"), 0);
}

TEST_F(MetricsTest, ShowRunsAndQuarantine) {
  auto stub = coordinator::Coordinator::NewStub(*MakeChannel(server_->endpoint(), {}));
  coordinator::StartRunRequest request;
  request.mutable_spec()->set_job("lm");
  request.mutable_spec()->add_command("true");
  request.mutable_spec()->set_directory("/");
  request.mutable_spec()->set_nodes(1);
  request.mutable_spec()->set_ranks_per_node(1);
  request.mutable_spec()->set_grace_ms(1000);
  coordinator::StartRunReply reply;
  grpc::ClientContext start;
  ASSERT_TRUE(stub->StartRun(&start, request, &reply).ok());
  ASSERT_EQ(reply.outcome().code(), 0U) << reply.outcome().message();
  const Scrape waiting = Fetch();
  EXPECT_EQ(waiting.Value(R"(holdfast_run_phase{holdfast_job="lm",phase="waiting"})"), 1)
      << waiting.text();
  EXPECT_EQ(waiting.Value(R"(holdfast_run_phase{holdfast_job="lm",phase="stopped"})"), 0);
  EXPECT_EQ(waiting.Value(R"(holdfast_run_workers{holdfast_job="lm"})"), 0);
  EXPECT_EQ(waiting.Value(R"(holdfast_run_restarts_total{holdfast_job="lm"})"), 0);

  coordinator::StopRunRequest stop;
  stop.set_job("lm");
  coordinator::StopRunReply stopped;
  grpc::ClientContext end;
  ASSERT_TRUE(stub->StopRun(&end, stop, &stopped).ok());
  EXPECT_TRUE(Eventually([&] {
    return Fetch().Value(R"(holdfast_run_phase{holdfast_job="lm",phase="stopped"})") == 1;
  }));
  FakeAgent agent(server_->endpoint(), "n7");
  agent.Attach();
  ASSERT_TRUE(Eventually([&] { return Fetch().Value(R"(holdfast_node_up{node="n7"})") == 1; }));

  coordinator::ObserveRequest observed;
  observed.set_node("n7");
  observed.set_agent_start(1);
  const auto add = [&](uint64_t number, uint32_t xid, const std::string& bus_id) {
    coordinator::ObservedGpuError* error = observed.add_gpu_errors();
    error->set_number(number);
    error->set_xid(xid);
    error->set_bus_id(bus_id);
    error->set_age_ns(~uint64_t{0});
  };
  const auto observe = [&] {
    grpc::ClientContext context;
    coordinator::ObserveReply observe_reply;
    ASSERT_TRUE(stub->Observe(&context, observed, &observe_reply).ok());
    ASSERT_EQ(observe_reply.outcome().code(), 0U) << observe_reply.outcome().message();
  };
  // Errors without a number, without an Xid, with an impossible Xid and with bad bus IDs are
  // ignored. The last one is a page fault of the program.
  add(0, 79, "");
  add(1, 0, "");
  add(2, 70'000, "");
  add(3, 79, "a\nb");
  add(4, 79, std::string(100, '0'));
  add(5, 31, "00000000:C6:00.0");
  observe();
  EXPECT_EQ(Fetch().Value(R"(holdfast_node_gpu_suspect{node="n7"})"), 0);
  EXPECT_EQ(Fetch().Value(R"(holdfast_node_quarantined{node="n7"})"), 0);
  observed.clear_gpu_errors();
  add(6, 79, "00000000:C6:00.0");
  observe();
  EXPECT_EQ(Fetch().Value(R"(holdfast_node_gpu_suspect{node="n7"})"), 1);

  coordinator::QuarantineRequest quarantine;
  quarantine.set_node("n7");
  quarantine.set_set(true);
  coordinator::QuarantineReply done;
  grpc::ClientContext context;
  ASSERT_TRUE(stub->Quarantine(&context, quarantine, &done).ok());
  ASSERT_EQ(done.outcome().code(), 0U) << done.outcome().message();
  EXPECT_EQ(Fetch().Value(R"(holdfast_node_quarantined{node="n7"})"), 1);
}

TEST_F(MetricsTest, AreAllDocumented) {
  std::set<std::string> documented;
  for (const MetricSpec* spec : CoordinatorMetrics()) documented.insert(std::string(spec->name));
  EXPECT_EQ(Fetch().Names(), documented);
  std::ifstream file(std::string(HOLDFAST_SOURCE_DIR) + "/docs/metrics.md");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, HasSubstr(DescribeMetrics(CoordinatorMetrics())));
}

TEST_F(MetricsTest, FollowTheRulesOfPrometheus) {
  if (!HasPromtool()) GTEST_SKIP() << "promtool (package prometheus) is not installed";
  EXPECT_THAT(CheckByPromtool("# TYPE holdfast_milliseconds counter\nholdfast_milliseconds 1\n"),
              HasSubstr("holdfast_milliseconds"))
      << "the check finds bad names";
  FakeAgent a(server_->endpoint(), "a");
  ASSERT_NO_FATAL_FAILURE(CommitInMemory(a));
  const Scrape page = Fetch();
  EXPECT_EQ(page.Value(R"(holdfast_job_phase{holdfast_job="gpt",phase="running"})"), 1);
  EXPECT_EQ(CheckByPromtool(page.page()), "");
}

TEST_F(MetricsTest, ShowTheHealthOfNodesAndJobs) {
  FakeAgent a(server_->endpoint(), "a");
  ASSERT_NO_FATAL_FAILURE(CommitInMemory(a));
  const Scrape page = Fetch();
  EXPECT_EQ(page.Value(R"(holdfast_node_warnings{node="a",code="DISK_FULL"})"), 0);
  EXPECT_EQ(page.Value(R"(holdfast_node_other_life_shards{node="a"})"), 0);
  EXPECT_EQ(page.Value("holdfast_coordinator_refused_nodes"), 0);
  EXPECT_EQ(page.Value("holdfast_metrics_dropped_series"), 0);
  EXPECT_EQ(page.Value(R"(holdfast_job_durable{holdfast_job="gpt"})"), 1)
      << "a newer version may follow";
  EXPECT_EQ(page.Value(R"(holdfast_job_under_protected_versions{holdfast_job="gpt"})"), 0);
  EXPECT_EQ(page.Value(R"(holdfast_job_phase{holdfast_job="gpt",phase="ended"})"), 0);
}

TEST_F(MetricsTest, ANonLocalAddressIsRefused) {
  server_.reset();
  config_.metrics.listen = "0.0.0.0:0";
  auto server = CoordinatorServer::Start(config_, Clock::Real());
  ASSERT_FALSE(server.has_value());
  EXPECT_THAT(server.error().message(), HasSubstr("metrics.listen 0.0.0.0:0"));
}

}  // namespace
}  // namespace holdfast::coord
