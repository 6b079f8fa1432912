#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "agent/server/grpc_link.h"
#include "agent/server/self_tester.h"
#include "tests/agent/pipeline/harness.h"
#include "tests/agent/server/cluster.h"

// A node leaves quarantine when its self-test has passed: a real coordinator, and a real agent or
// the agent's link with a simulated defective core.

namespace holdfast::agent {
namespace {
namespace pb = ::holdfast::coordinator;
using ::testing::HasSubstr;

class IgnoredDirectives final : public DirectiveHandler {
 public:
  void OnJobState(JobState /*state*/) override {}
  void OnPrepareShard(PrepareShard /*prepare*/) override {}
  void OnRemoveVersion(RemoveVersion /*remove*/) override {}
};

class NodeSelfTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(cluster_.StartCoordinator().ok()); }
  void TearDown() override {
    if (link_ != nullptr) link_->Stop();
  }

  template <typename Request, typename Reply, typename Method>
  Reply Call(Method method, const Request& request) {
    Reply reply;
    grpc::ClientContext context;
    const auto stub = cluster_.Control();
    const grpc::Status sent = ((*stub).*method)(&context, request, &reply);
    EXPECT_TRUE(sent.ok()) << sent.error_message();
    return reply;
  }
  pb::GetRunsReply Runs() {
    return Call<pb::GetRunsRequest, pb::GetRunsReply>(&pb::Coordinator::Stub::GetRuns, {});
  }
  bool IsQuarantined(const std::string& node) {
    const pb::GetRunsReply runs = Runs();
    return std::any_of(runs.quarantine().begin(), runs.quarantine().end(),
                       [&](const pb::QuarantinedNode& one) { return one.node() == node; });
  }
  bool IsTesting() {
    const pb::GetRunsReply runs = Runs();
    return std::any_of(runs.quarantine().begin(), runs.quarantine().end(),
                       [](const pb::QuarantinedNode& one) { return one.testing(); });
  }
  bool AwaitNode(const std::string& node) {
    return Eventually([&] {
      const auto status =
          Call<pb::GetStatusRequest, pb::GetStatusReply>(&pb::Coordinator::Stub::GetStatus, {});
      return std::any_of(status.nodes().begin(), status.nodes().end(),
                         [&](const auto& one) { return one.node() == node && one.alive(); });
    });
  }
  void Change(const std::string& node, bool set, bool untested = false) {
    pb::QuarantineRequest request;
    request.set_node(node);
    request.set_set(set);
    request.set_why("test");
    request.set_untested(untested);
    const auto reply = Call<pb::QuarantineRequest, pb::QuarantineReply>(
        &pb::Coordinator::Stub::Quarantine, request);
    EXPECT_EQ(reply.outcome().code(), 0U) << reply.outcome().message();
  }
  std::vector<pb::Incident> SelfTests() {
    const auto reply = Call<pb::ListIncidentsRequest, pb::ListIncidentsReply>(
        &pb::Coordinator::Stub::ListIncidents, {});
    std::vector<pb::Incident> found;
    for (const pb::Incident& incident : reply.incidents()) {
      if (incident.kind() == "self-test") found.push_back(incident);
    }
    return found;
  }
  /// Attaches as node "n9", whose cores return wrong results if they are `defective`.
  void AttachWith(bool defective) {
    if (link_ != nullptr) link_->Stop();
    link_.reset();
    selftest::SelfTestOptions test;
    test.cpu.seconds = 0.01;
    test.memory.bytes = uint64_t{16} << 20U;
    if (defective) test.cpu.wrong = [](int /*core*/, uint64_t result) { return result ^ 1U; };
    tester_ = std::make_unique<SelfTester>(std::move(test));
    GrpcLinkOptions options;
    options.cluster = "test";
    options.node = "n9";
    options.agent_id = 9;
    options.agent_start = ++starts_;
    options.disk_free_percent = [] { return 50U; };
    options.arena_use = [] { return ArenaUse{.bytes = 4 << 20, .reserved_bytes = 1 << 20}; };
    options.heartbeat_ms = 100;
    options.self_tester = tester_.get();
    link_ = std::make_unique<GrpcCoordinatorLink>(
        options, *coord::LeaderChannel::Make("unix:" + cluster_.root() + "/c.sock", {}),
        Clock::Real());
    link_->Start(handler_, "unix:" + cluster_.root() + "/n9.sock");
    ASSERT_TRUE(link_->AwaitAttached(10'000));
    ASSERT_TRUE(AwaitNode("n9"));
  }

  TestCluster cluster_;
  IgnoredDirectives handler_;
  std::unique_ptr<SelfTester> tester_;
  std::unique_ptr<GrpcCoordinatorLink> link_;
  uint64_t starts_ = 0;
};

TEST_F(NodeSelfTest, AnAgentTestsItsNodeBeforeTheNodeLeavesQuarantine) {
  ASSERT_TRUE(cluster_.StartAgent(0).ok());
  ASSERT_TRUE(AwaitNode("n0"));
  Change("n0", true);
  ASSERT_TRUE(IsQuarantined("n0"));
  EXPECT_FALSE(IsTesting());
  Change("n0", false);
  EXPECT_TRUE(IsQuarantined("n0")) << "until the test has passed";
  EXPECT_TRUE(IsTesting());
  ASSERT_TRUE(Eventually([&] { return !IsQuarantined("n0"); }, 60'000)) << cluster_.AgentLog(0);
  const std::vector<pb::Incident> tests = SelfTests();
  ASSERT_EQ(tests.size(), 1U);
  EXPECT_EQ(tests[0].what(), "node n0 has passed its self-test");
  ASSERT_EQ(tests[0].evidence_size(), 3);
  EXPECT_THAT(tests[0].evidence(0), testing::StartsWith("cpu: passed: "));
  EXPECT_THAT(tests[0].evidence(1), testing::StartsWith("memory: passed: "));
  EXPECT_THAT(tests[0].evidence(2), HasSubstr("disk " + cluster_.root()));
  EXPECT_THAT(cluster_.AgentLog(0), HasSubstr("SelfTestEnded"));
  EXPECT_EQ(Runs().blamed_size(), 0);
  // A release without a self-test runs none.
  Change("n0", true);
  Change("n0", false, /*untested=*/true);
  EXPECT_FALSE(IsQuarantined("n0"));
  EXPECT_EQ(SelfTests().size(), 1U);
}

TEST_F(NodeSelfTest, ANodeWithADefectiveCoreStaysInQuarantine) {
  AttachWith(/*defective=*/true);
  Change("n9", true);
  Change("n9", false);
  ASSERT_TRUE(Eventually([&] { return !IsTesting(); }, 60'000));
  ASSERT_TRUE(IsQuarantined("n9"));
  EXPECT_THAT(Runs().quarantine(0).why(), HasSubstr("its self-test failed: cpu: FAILED"));
  ASSERT_EQ(Runs().blamed_size(), 1);
  EXPECT_EQ(Runs().blamed(0).node(), "n9");
  EXPECT_EQ(Runs().blamed(0).jobs(), 1U);
  ASSERT_EQ(SelfTests().size(), 1U);
  EXPECT_THAT(SelfTests()[0].plan(), HasSubstr("holdfast quarantine n9 --release"));
  // The machine was repaired, and its agent is new.
  AttachWith(/*defective=*/false);
  EXPECT_TRUE(IsQuarantined("n9"));
  Change("n9", false);
  EXPECT_TRUE(Eventually([&] { return !IsQuarantined("n9"); }, 60'000));
  EXPECT_EQ(SelfTests().size(), 2U);
}

TEST_F(NodeSelfTest, ANodeThatIsAwayIsTestedWhenItIsBack) {
  AttachWith(/*defective=*/false);
  Change("n9", true);
  link_->Stop();
  Change("n9", false);
  EXPECT_TRUE(IsTesting());
  AttachWith(/*defective=*/false);
  EXPECT_TRUE(Eventually([&] { return !IsQuarantined("n9"); }, 60'000));
}

}  // namespace
}  // namespace holdfast::agent
