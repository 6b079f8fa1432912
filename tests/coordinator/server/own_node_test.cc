// The certificate of an agent is good for its own node only.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "coordinator/api/convert.h"
#include "coordinator/server/coordinator_server.h"
#include "tests/coordinator/api/tls_files.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

class OwnNodeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!certificates_.made()) {
      GTEST_SKIP() << "the openssl command, which makes the certificates, does not run";
    }
    CoordinatorConfig config;
    config.cluster = "test";
    config.listen = "127.0.0.1:0";
    config.data_dir = dir_.path() + "/data";
    config.tls = FilesOf(certificates_.Node());
    server_ = CoordinatorServer::Start(config, Clock::Real()).value();
    agent_ = Connect("n0", ",URI:spiffe://test/agent/n0");
  }
  std::unique_ptr<coordinator::Coordinator::Stub> Connect(const std::string& name,
                                                          const std::string& uri) const {
    const auto files = FilesOf(certificates_.Issue(name, "IP:127.0.0.1" + uri));
    return coordinator::Coordinator::NewStub(MakeChannel(server_->endpoint(), files).value());
  }
  /// Attaches a node; returns the error, or OK once the first directive has arrived.
  static Status Attach(coordinator::Coordinator::Stub& stub, const std::string& node) {
    grpc::ClientContext context;
    coordinator::AttachRequest request;
    request.set_cluster("test");
    request.set_node(node);
    request.set_agent_start(1);
    request.set_data_address("127.0.0.1:7001");
    auto reader = stub.Attach(&context, request);
    coordinator::Directive directive;
    if (reader->Read(&directive)) {
      context.TryCancel();
      while (reader->Read(&directive)) {
      }
      reader->Finish();
      return Status::Ok();
    }
    return FromGrpc(reader->Finish(), "coordinator");
  }
  template <typename Request, typename Reply, typename Method>
  Status Send(Method method, const std::string& node) {
    Request request;
    Reply reply;
    request.set_node(node);
    if constexpr (requires { request.set_job("lm"); }) request.set_job("lm");
    grpc::ClientContext context;
    const grpc::Status sent = (agent_.get()->*method)(&context, request, &reply);
    return sent.ok() ? FromProto(reply.outcome()) : FromGrpc(sent, "coordinator");
  }
  /// The outcomes of the unary calls of an agent.
  std::vector<Status> SendAll(const std::string& node) {
    using Stub = coordinator::Coordinator::Stub;
    namespace c = coordinator;
    return {Send<c::ReportRequest, c::ReportReply>(&Stub::Report, node),
            Send<c::JoinRequest, c::JoinReply>(&Stub::Join, node),
            Send<c::ObserveRequest, c::ObserveReply>(&Stub::Observe, node),
            Send<c::DecideRestoreRequest, c::DecideRestoreReply>(&Stub::DecideRestore, node)};
  }

  const agent::TestCertificates& certificates_ = agent::TestCertificates::Get();
  agent::TempDir dir_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<coordinator::Coordinator::Stub> agent_;
};

TEST_F(OwnNodeTest, AnAgentAttachesAsItsOwnNodeOnly) {
  const Status other = Attach(*agent_, "n1");
  EXPECT_EQ(other.code(), ErrorCode::kPermissionDenied) << other.ToString();
  EXPECT_THAT(other.message(), HasSubstr("spiffe://test/agent/n0 may not act for node 'n1'"));
  EXPECT_TRUE(Attach(*agent_, "n0").ok());
}

TEST_F(OwnNodeTest, AnAgentCallsAsItsOwnNodeOnly) {
  for (const Status& outcome : SendAll("n1")) {
    EXPECT_EQ(outcome.code(), ErrorCode::kPermissionDenied) << outcome.ToString();
    EXPECT_THAT(outcome.message(), HasSubstr("may not act for node 'n1'"));
  }
  for (const Status& outcome : SendAll("n0")) {
    EXPECT_NE(outcome.code(), ErrorCode::kPermissionDenied) << outcome.ToString();
  }
}

TEST_F(OwnNodeTest, ACertificateWithoutANameIsAnyNode) {
  const auto any = Connect("any", "");
  EXPECT_TRUE(Attach(*any, "n0").ok());
  EXPECT_TRUE(Attach(*any, "n1").ok());
}

}  // namespace
}  // namespace holdfast::coord
