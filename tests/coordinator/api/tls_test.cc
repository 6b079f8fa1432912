// A gRPC server with TLS accepts only clients with a certificate of its authority.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "coordinator/api/channel.h"
#include "coordinator/api/coordinator.grpc.pb.h"
#include "tests/coordinator/api/tls_files.h"

namespace holdfast::coord {
namespace {

std::string Text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

class TlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!certificates_.made()) {
      GTEST_SKIP() << "the openssl command, which makes the certificates, does not run";
    }
    endpoint_ = *ParseEndpoint("127.0.0.1:0");
    guarded_ = GuardedService::Make(service_, coordinator::Coordinator::service_full_name(), "test",
                                    AccessOptions{}, Clock::Real())
                   .value();
    auto server =
        StartServer(*guarded_, endpoint_, FilesOf(certificates_.Node()), "listen", 1 << 20);
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
  }
  /// The default service answers every call that reaches it with UNIMPLEMENTED.
  grpc::StatusCode Call(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    auto channel = grpc::CreateChannel(GrpcTarget(endpoint_), credentials);
    auto stub = coordinator::Coordinator::NewStub(channel);
    grpc::ClientContext context;
    coordinator::GetStatusReply reply;
    return stub->GetStatus(&context, {}, &reply).error_code();
  }

  const agent::TestCertificates& certificates_ = agent::TestCertificates::Get();
  coordinator::Coordinator::Service service_;
  std::unique_ptr<GuardedService> guarded_;
  Endpoint endpoint_;
  std::unique_ptr<ApiServer> server_;
};

TEST_F(TlsTest, OnlyACertificateOfTheAuthorityIsAccepted) {
  const agent::PeerTlsFiles node = certificates_.Node();
  const agent::PeerTlsFiles stranger = certificates_.Stranger();
  EXPECT_EQ(Call(grpc::SslCredentials({Text(node.ca), Text(node.key), Text(node.cert)})),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(Call(grpc::SslCredentials({Text(node.ca), "", ""})), grpc::StatusCode::UNAVAILABLE)
      << "no certificate at all";
  EXPECT_EQ(Call(grpc::SslCredentials({Text(node.ca), Text(stranger.key), Text(stranger.cert)})),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(grpc::InsecureChannelCredentials()), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, OurChannelsPresentTheirCertificate) {
  auto channel = MakeChannel(endpoint_, FilesOf(certificates_.Node()), 1 << 20);
  ASSERT_TRUE(channel) << channel.error().ToString();
  auto stub = coordinator::Coordinator::NewStub(*channel);
  grpc::ClientContext context;
  coordinator::GetStatusReply reply;
  EXPECT_EQ(stub->GetStatus(&context, {}, &reply).error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace holdfast::coord
