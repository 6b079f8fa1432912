// Refused peers: other secrets, clusters and certificates, tested on both sides.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/fd.h"

#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

class SecurityTest : public ::testing::Test {
 protected:
  SecurityTest() {
    server_options_.cluster = "test";
    server_options_.node = "server";
    transport_options_.cluster = "test";
    transport_options_.node = "client";
    source_.Add(1, 100);
  }
  /// Starts a server, reads from it with the current options, and returns the status.
  Status FetchStatus() {
    auto server = TcpPeerServer::Start(server_options_, source_, Clock::Real());
    if (!server) return server.error();
    auto transport = MakeTcpTransport(transport_options_, Clock::Real());
    if (!transport) return transport.error();
    auto got = Fetch(**transport, (*server)->address(), ShardRequest(1, 0, 100), Far());
    (*server)->Stop();
    rejected_ = (*server)->counters().rejected;
    plain_ = (*server)->counters().modes.count(FrameMode::kPlain);
    if (!got) return got.error();
    EXPECT_EQ(got->size(), 100U);
    return Status::Ok();
  }

  TempDir dir_;
  TestSource source_;
  TcpPeerServerOptions server_options_;
  TcpTransportOptions transport_options_;
  uint64_t rejected_ = 0;
  uint64_t plain_ = 0;  // connections without TLS that completed the handshake
};

TEST_F(SecurityTest, SecretsMustBeTheSame) {
  server_options_.secret_file = dir_.Write("a", "0123456789abcdef");
  transport_options_.secret_file = dir_.Write("b", "0123456789abcdef");
  EXPECT_EQ(FetchStatus(), Status::Ok());
  EXPECT_EQ(plain_, 1U);
  for (const char* other : {"0123456789abcdeg", "0123456789abcdef\n", "0123456789abcdef0"}) {
    transport_options_.secret_file = dir_.Write("b", other);
    const Status status = FetchStatus();
    EXPECT_EQ(status.code(), ErrorCode::kPermissionDenied);
    EXPECT_THAT(status.message(), HasSubstr("peers.secret_file must hold the same bytes"));
    EXPECT_EQ(rejected_, 1U);
    EXPECT_EQ(plain_, 0U);
  }
  transport_options_.secret_file.clear();
  EXPECT_EQ(FetchStatus().code(), ErrorCode::kPermissionDenied);
  std::swap(transport_options_.secret_file, server_options_.secret_file);
  EXPECT_EQ(FetchStatus().code(), ErrorCode::kPermissionDenied)
      << "the server needs the secret, too";
}

TEST_F(SecurityTest, AnotherClusterIsRefused) {
  transport_options_.cluster = "prod";
  const Status status = FetchStatus();
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("node client belongs to cluster prod"));
}

TEST_F(SecurityTest, BeyondThisMachineTlsIsRequiredAtTheStart) {
  for (const char* listen : {"0.0.0.0:0", "[::]:0"}) {
    server_options_.listen = listen;
    const Status status = FetchStatus();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("set tls.ca"));
  }
  server_options_.listen = "0.0.0.0:0";
  server_options_.secret_file = dir_.Write("a", std::string(16, 's'));
  EXPECT_FALSE(TcpPeerServer::Start(server_options_, source_, Clock::Real()))
      << "a secret is not enough";
}

TEST_F(SecurityTest, BeyondThisMachineAClientNeedsTls) {
  transport_options_.secret_file = dir_.Write("a", std::string(16, 's'));
  auto transport = MakeTcpTransport(transport_options_, Clock::Real());
  ASSERT_TRUE(transport);
  // Refused before it connects: nothing listens at the addresses.
  for (const char* address : {"10.77.0.1:7100", "[2001:db8::1]:7100", "node.invalid:7100"}) {
    const auto got = Fetch(**transport, address, ShardRequest(1, 0, 100), Far());
    ASSERT_FALSE(got) << address;
    EXPECT_EQ(got.error().code(), ErrorCode::kInvalidArgument) << got.error().ToString();
    EXPECT_THAT(got.error().message(), HasSubstr("set tls.ca"));
  }
}

TEST_F(SecurityTest, InvalidOptionsAreRefusedAtTheStart) {
  server_options_.secret_file = dir_.Write("open", std::string(16, 's'), 0644);
  EXPECT_EQ(FetchStatus().code(), ErrorCode::kPermissionDenied);
  server_options_.secret_file.clear();
  server_options_.node = "a/b";
  EXPECT_EQ(FetchStatus().code(), ErrorCode::kInvalidArgument);
  server_options_.node = "server";
  transport_options_.cluster = "";
  EXPECT_EQ(FetchStatus().code(), ErrorCode::kInvalidArgument);
  transport_options_.cluster = "test";
  server_options_.tls = {dir_.Write("ca", "no PEM"), dir_.Write("cert", "no PEM"),
                         dir_.Write("key", "no PEM")};
  EXPECT_THAT(FetchStatus().message(), HasSubstr("tls.ca"));
  server_options_.tls.ca.clear();
  EXPECT_THAT(FetchStatus().message(), HasSubstr("all three"));
}

class TlsTest : public SecurityTest {
 protected:
  void SetUp() override {
    if (!certificates_.made()) {
      GTEST_SKIP() << "the openssl command, which makes the certificates, does not run";
    }
    server_options_.tls = certificates_.Node();
    transport_options_.tls = certificates_.Node();
  }
  const TestCertificates& certificates_ = TestCertificates::Get();
};

TEST_F(TlsTest, CertificatesOfTheAuthorityAreAccepted) {
  EXPECT_EQ(FetchStatus(), Status::Ok());
  EXPECT_EQ(plain_, 0U);
}

TEST_F(TlsTest, CertificatesAreAcceptedByName) {
  // For "localhost" the certificate must contain exactly that name.
  auto server = TcpPeerServer::Start(server_options_, source_, Clock::Real());
  ASSERT_TRUE(server);
  std::string address = (*server)->address();
  address.replace(0, address.find(':'), "localhost");
  auto transport = MakeTcpTransport(transport_options_, Clock::Real());
  EXPECT_TRUE(Fetch(**transport, address, ShardRequest(1, 0, 100), Far()));
  server_options_.tls = certificates_.Far();
  auto far = TcpPeerServer::Start(server_options_, source_, Clock::Real());
  address = (*far)->address();
  address.replace(0, address.find(':'), "localhost");
  EXPECT_EQ(Fetch(**transport, address, ShardRequest(1, 0, 100), Far()).error().code(),
            ErrorCode::kPermissionDenied);
}

TEST_F(TlsTest, AServerOfAnotherAuthorityOrAddressIsRefused) {
  server_options_.tls = certificates_.Stranger();
  transport_options_.tls = certificates_.Node();
  EXPECT_EQ(FetchStatus().code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(rejected_, 1U);
  server_options_.tls = certificates_.Far();
  const Status status = FetchStatus();
  EXPECT_EQ(status.code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(status.message(), HasSubstr("IP address mismatch"));
}

TEST_F(TlsTest, AClientOfAnotherAuthorityIsRefused) {
  // The client trusts the server, but the server does not trust the client.
  PeerTlsFiles stranger = certificates_.Stranger();
  transport_options_.tls = {certificates_.Node().ca, stranger.cert, stranger.key};
  const Status status = FetchStatus();
  EXPECT_TRUE(status.code() == ErrorCode::kPermissionDenied ||
              status.code() == ErrorCode::kUnavailable)
      << status.ToString();
  EXPECT_EQ(rejected_, 1U);
}

/// Returns OpenSSL's error for a client that sends no certificate and reads the server's answer.
int ErrorWithoutCertificate(const std::string& ca, uint16_t port) {
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()),
                                                       &SSL_CTX_free);
  EXPECT_EQ(SSL_CTX_load_verify_locations(context.get(), ca.c_str(), nullptr), 1);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval timeout{3, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  std::unique_ptr<SSL, void (*)(SSL*)> session(SSL_new(context.get()), &SSL_free);
  EXPECT_EQ(SSL_set_fd(session.get(), fd.get()), 1);
  int result = SSL_connect(session.get());
  char byte = 0;
  // In TLS 1.3 the client's handshake ends before the server has checked the certificate.
  if (result == 1) result = SSL_read(session.get(), &byte, 1);
  const int error = SSL_get_error(session.get(), result);
  ERR_clear_error();
  return error;
}

TEST_F(TlsTest, AClientWithoutACertificateIsRefused) {
  auto server = TcpPeerServer::Start(server_options_, source_, Clock::Real());
  ASSERT_TRUE(server);
  const std::string address = (*server)->address();
  const auto port = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  // The server sends an alert instead of waiting for the first frame.
  EXPECT_EQ(ErrorWithoutCertificate(certificates_.Node().ca, port), SSL_ERROR_SSL);
  (*server)->Stop();
  EXPECT_EQ((*server)->counters().rejected, 1U);
}

TEST_F(TlsTest, BothSidesMustUseTlsAndGetTheReason) {
  transport_options_.tls = {};
  Status status = FetchStatus();
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("tls.ca, tls.cert and tls.key on all nodes"));
  EXPECT_EQ(rejected_, 1U);
  transport_options_.tls = certificates_.Node();
  server_options_.tls = {};
  status = FetchStatus();
  EXPECT_THAT(status.message(), HasSubstr("TLS")) << status.ToString();
  EXPECT_EQ(rejected_, 1U);
}

TEST_F(TlsTest, TheSecretIsStillRequired) {
  // A certificate alone does not prove membership in the cluster.
  server_options_.secret_file = dir_.Write("a", std::string(16, 'a'));
  transport_options_.secret_file = dir_.Write("b", std::string(16, 'b'));
  EXPECT_THAT(FetchStatus().message(), HasSubstr("peers.secret_file"));
}

}  // namespace
}  // namespace holdfast::agent
