// The certificate of a relay is good for the nodes that are attached through it, and for no call of
// an operator. A relay accepts an agent for its own node only.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "coordinator/api/convert.h"
#include "coordinator/relay/relay_server.h"
#include "coordinator/server/coordinator_server.h"
#include "tests/coordinator/api/tls_files.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;
using Stub = pb::Coordinator::Stub;

class RelayNamesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!certificates_.made()) {
      GTEST_SKIP() << "the openssl command, which makes the certificates, does not run";
    }
    CoordinatorConfig config;
    config.cluster = "test";
    config.listen = "127.0.0.1:0";
    config.data_dir = dir_.path() + "/data";
    config.tls = Issue("c", ",URI:spiffe://test/coordinator/c");
    server_ = CoordinatorServer::Start(config, Clock::Real()).value();
    relay::RelayOptions options;
    options.cluster = "test";
    options.listen = "127.0.0.1:0";
    options.upstream = server_->endpoint().ToString();
    options.tls = Issue("r0", ",URI:spiffe://test/relay/r0");
    relay_ = relay::RelayServer::Start(options, Clock::Real()).value();
    direct_ = Connect(server_->endpoint(), Issue("r0", ",URI:spiffe://test/relay/r0"));
    agent_ = Connect(relay_->endpoint(), Issue("n0", ",URI:spiffe://test/agent/n0"));
  }
  TlsFiles Issue(const std::string& name, const std::string& uri) const {
    return FilesOf(certificates_.Issue(name, "IP:127.0.0.1" + uri));
  }
  static std::unique_ptr<Stub> Connect(const Endpoint& endpoint, const TlsFiles& files) {
    return pb::Coordinator::NewStub(
        MakeChannel(endpoint, files, kControlMessageBytesMax, ServerRole::kCoordinatorOrRelay)
            .value());
  }

  struct Attached {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<pb::Directive>> reader;
    ~Attached() {
      context.TryCancel();
      pb::Directive directive;
      while (reader != nullptr && reader->Read(&directive)) {
      }
      if (reader != nullptr) reader->Finish();
    }
  };
  /// Attaches a node once the relay has a session; returns the error.
  static Status Attach(Stub& stub, const std::string& node, std::unique_ptr<Attached>* attached) {
    Status status;
    for (int tries = 0; tries < 100; ++tries) {
      auto one = std::make_unique<Attached>();
      pb::AttachRequest request;
      request.set_cluster("test");
      request.set_node(node);
      request.set_agent_start(1);
      request.set_data_address("127.0.0.1:7001");
      one->reader = stub.Attach(&one->context, request);
      pb::Directive directive;
      if (one->reader->Read(&directive)) {
        *attached = std::move(one);
        return Status::Ok();
      }
      status = FromGrpc(one->reader->Finish(), "relay");
      one->reader.reset();
      if (status.code() != ErrorCode::kUnavailable) return status;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return status;
  }
  template <typename Request, typename Reply, typename Method>
  static Status Send(Stub& stub, Method method, const std::string& node) {
    Request request;
    Reply reply;
    if constexpr (requires { request.set_node(node); }) request.set_node(node);
    request.set_job("lm");
    grpc::ClientContext context;
    const grpc::Status sent = (stub.*method)(&context, request, &reply);
    return sent.ok() ? FromProto(reply.outcome()) : FromGrpc(sent, "server");
  }
  static Status Join(Stub& stub, const std::string& node) {
    return Send<pb::JoinRequest, pb::JoinReply>(stub, &Stub::Join, node);
  }
  static Status Decide(Stub& stub, const std::string& node) {
    return Send<pb::DecideRestoreRequest, pb::DecideRestoreReply>(stub, &Stub::DecideRestore, node);
  }

  const agent::TestCertificates& certificates_ = agent::TestCertificates::Get();
  agent::TempDir dir_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<relay::RelayServer> relay_;
  std::unique_ptr<Stub> direct_;  // to the coordinator, with the relay's certificate
  std::unique_ptr<Stub> agent_;   // of n0, to the relay
};

TEST_F(RelayNamesTest, AnAgentIsRefusedAsAnotherNode) {
  std::unique_ptr<Attached> attached;
  const Status other = Attach(*agent_, "n1", &attached);
  EXPECT_EQ(other.code(), ErrorCode::kPermissionDenied) << other.ToString();
  EXPECT_THAT(other.message(), HasSubstr("spiffe://test/agent/n0 may not act for node 'n1'"));
  ASSERT_TRUE(Attach(*agent_, "n0", &attached).ok());
  EXPECT_EQ(Join(*agent_, "n1").code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(Decide(*agent_, "n1").code(), ErrorCode::kPermissionDenied);
}

TEST_F(RelayNamesTest, ARelayActsForTheNodesThatAreAttachedThroughIt) {
  const Status before = Join(*direct_, "n0");
  EXPECT_EQ(before.code(), ErrorCode::kPermissionDenied) << before.ToString();
  EXPECT_THAT(before.message(), HasSubstr("not attached through it"));
  std::unique_ptr<Attached> attached;
  const Status status = Attach(*agent_, "n0", &attached);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_NE(Join(*agent_, "n0").code(), ErrorCode::kPermissionDenied);
  EXPECT_NE(Decide(*agent_, "n0").code(), ErrorCode::kPermissionDenied);
  EXPECT_NE(Join(*direct_, "n0").code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(Join(*direct_, "n1").code(), ErrorCode::kPermissionDenied);
}

TEST_F(RelayNamesTest, ARelayIsNoOperatorAndNoAgent) {
  const Status pin = Send<pb::PinRequest, pb::PinReply>(*direct_, &Stub::Pin, "");
  EXPECT_EQ(pin.code(), ErrorCode::kPermissionDenied) << pin.ToString();
  std::unique_ptr<Attached> attached;
  const Status attach = Attach(*direct_, "n0", &attached);
  EXPECT_EQ(attach.code(), ErrorCode::kPermissionDenied) << attach.ToString();
}

TEST_F(RelayNamesTest, AnAgentIsNoRelay) {
  const auto files = Issue("n0", ",URI:spiffe://test/agent/n0");
  const auto stub = pb::Relays::NewStub(MakeChannel(server_->endpoint(), files).value());
  grpc::ClientContext context;
  pb::OpenRelayRequest request;
  request.set_cluster("test");
  const auto reader = stub->Open(&context, request);
  pb::RelayDown down;
  EXPECT_FALSE(reader->Read(&down));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

// A client that expects a coordinator, as the CLI does, gives a relay nothing.
TEST_F(RelayNamesTest, ARelayIsNoCoordinator) {
  const auto files = Issue("o", ",URI:spiffe://test/operator/o");
  const auto stub = pb::Coordinator::NewStub(
      MakeChannel(relay_->endpoint(), files, kControlMessageBytesMax, ServerRole::kCoordinator)
          .value());
  grpc::ClientContext context;
  pb::GetStatusReply reply;
  const grpc::Status refused = stub->GetStatus(&context, pb::GetStatusRequest(), &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE) << refused.error_message();
}

}  // namespace
}  // namespace holdfast::coord
