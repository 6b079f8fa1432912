// Peers with names in their certificates: each speaks only for itself, revoked ones are refused,
// new files are used without a restart, and strangers take no place of a peer.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/certificates/authority.h"
#include "base/certificates/durable_file.h"
#include "base/fd.h"
#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;
namespace c = certificates;

constexpr int64_t kSecond = 1'000'000'000;
int64_t NowSeconds() { return Clock::Real().WallNanos() / kSecond; }

class PeerNameTest : public ::testing::Test {
 protected:
  PeerNameTest() : authority_(*c::Authority::Create("test", NowSeconds())) {
    ca_ = dir_.Write("ca", authority_.certificate().ToPem());
    server_options_.cluster = transport_options_.cluster = "test";
    server_options_.node = "server";
    transport_options_.node = "client";
    server_options_.revoked = &server_revoked_;
    transport_options_.revoked = &client_revoked_;
    server_options_.tls = Issue("server", "spiffe://test/agent/server");
    transport_options_.tls = Issue("client", "spiffe://test/agent/client");
    source_.Add(1, 100);
  }

  /// Writes a certificate with its key into one file, in one step.
  PeerTlsFiles Issue(const std::string& file, const std::string& uri,
                     const c::Authority* authority = nullptr, int64_t begins_in = -60,
                     int64_t ends_in = 3600) const {
    if (authority == nullptr) authority = &authority_;
    const auto key = *c::PrivateKey::Generate();
    const auto made = authority->Sign(
        key.get(), {uri, {"127.0.0.1"}, NowSeconds() + begins_in, NowSeconds() + ends_in});
    const std::string path = dir_.path() + "/" + file;
    EXPECT_TRUE(c::ReplaceFile(path, made->ToPem() + key.ToPem(), 0600).ok());
    return {ca_, path, path};
  }
  Status FetchOnce(const std::string& wanted = "server") {
    auto server = TcpPeerServer::Start(server_options_, source_, Clock::Real());
    if (!server) return server.error();
    auto transport = MakeTcpTransport(transport_options_, Clock::Real());
    return FetchFrom(**transport, (*server)->address(), wanted);
  }
  static Status FetchFrom(PeerTransport& transport, const std::string& address,
                          const std::string& wanted = "server") {
    PeerRequest request = ShardRequest(1, 0, 100);
    request.node = wanted;
    auto got = Fetch(transport, address, request, Far());
    return got ? Status::Ok() : got.error();
  }
  static void Revoke(c::RevokedNames& list, const std::string& name) {
    list.Replace({{{"agent", name}, NowSeconds()}});
  }

  TempDir dir_;
  c::Authority authority_;
  std::string ca_;
  TestSource source_;
  c::RevokedNames server_revoked_;
  c::RevokedNames client_revoked_;
  TcpPeerServerOptions server_options_;
  TcpTransportOptions transport_options_;
};

TEST_F(PeerNameTest, EachNodeSpeaksOnlyForItself) {
  EXPECT_EQ(FetchOnce(), Status::Ok());
  for (const char* uri : {"spiffe://test/agent/other", "spiffe://other/agent/client",
                          "spiffe://test/operator/client", "spiffe://test/coordinator/client"}) {
    transport_options_.tls = Issue("wrong", uri);
    const Status status = FetchOnce();
    EXPECT_EQ(status.code(), ErrorCode::kPermissionDenied) << uri << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(std::string("node 'client' names ") + uri));
  }
  transport_options_.tls = Issue("client", "spiffe://test/agent/client");
  server_options_.tls = Issue("wrong", "spiffe://test/agent/other");
  const Status status = FetchOnce();
  EXPECT_EQ(status.code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(status.message(), HasSubstr("node 'server' names spiffe://test/agent/other"));
}

TEST_F(PeerNameTest, ACertificateCountsOnlyWhileItIsValid) {
  const PeerTlsFiles server = server_options_.tls;
  const PeerTlsFiles client = transport_options_.tls;
  const std::pair<int64_t, int64_t> times[] = {{-3600, -2}, {3600, 7200}};
  for (const auto& [begins, ends] : times) {
    const std::string reason =
        ends < 0 ? "certificate has expired" : "certificate is not yet valid";
    server_options_.tls =
        Issue("other_server", "spiffe://test/agent/server", nullptr, begins, ends);
    transport_options_.tls = client;
    const Status status = FetchOnce();
    EXPECT_EQ(status.code(), ErrorCode::kPermissionDenied) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(reason));
    server_options_.tls = server;
    transport_options_.tls =
        Issue("other_client", "spiffe://test/agent/client", nullptr, begins, ends);
    EXPECT_FALSE(FetchOnce().ok()) << reason;
  }
  transport_options_.tls = client;
  EXPECT_EQ(FetchOnce(), Status::Ok());
}

TEST_F(PeerNameTest, TheNodeOfThePlanMustAnswer) {
  EXPECT_EQ(FetchOnce(""), Status::Ok());
  const Status status = FetchOnce("planned");
  EXPECT_EQ(status.code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(status.message(), HasSubstr("node 'server' answers"));
  EXPECT_THAT(status.message(), HasSubstr("the plan has node 'planned'"));
}

TEST_F(PeerNameTest, ARevokedNodeIsRefusedByBothSides) {
  Revoke(client_revoked_, "server");
  EXPECT_THAT(FetchOnce().message(), HasSubstr("the certificate of node 'server' is revoked"));
  client_revoked_.Replace({});
  Revoke(server_revoked_, "client");
  EXPECT_THAT(FetchOnce().message(), HasSubstr("the certificate of node 'client' is revoked"));
  // A certificate that begins after the revocation is accepted.
  server_revoked_.Replace({{{"agent", "client"}, NowSeconds() - 120}});
  EXPECT_EQ(FetchOnce(), Status::Ok());
}

/// Open connections, encrypted and with tags.
class OpenStreamTest : public PeerNameTest, public ::testing::WithParamInterface<bool> {
 protected:
  OpenStreamTest() { server_options_.encrypt = transport_options_.encrypt = GetParam(); }
  /// Expects that the connections of the server have the mode of this test.
  static void ExpectMode(const TcpPeerServer& server) {
    const FrameModes& modes = server.counters().modes;
    EXPECT_EQ(modes.count(FrameMode::kTls) > 0, GetParam());
    EXPECT_EQ(modes.count(FrameMode::kMac) > 0, !GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, OpenStreamTest, ::testing::Bool(), [](const auto& mode) {
  return std::string(mode.param ? "encrypted" : "tagged");
});

TEST_P(OpenStreamTest, ARevocationEndsIt) {
  TestObject& object = source_.Add(2, 4 << 20);
  object.SetFinal(1 << 20);  // the rest comes later
  auto server = TcpPeerServer::Start(server_options_, source_, Clock::Real());
  auto transport = MakeTcpTransport(transport_options_, Clock::Real());
  auto stream = (*transport)->Open((*server)->address(), ShardRequest(2, 0, 4 << 20), Far());
  ASSERT_TRUE(stream);
  std::vector<std::byte> unit(kPeerUnitBytes);
  ASSERT_TRUE((*stream)->Read(unit, Far()));
  Revoke(server_revoked_, "client");
  const auto begun = Clock::Real().Now();
  EXPECT_FALSE((*stream)->Read(unit, Far()));
  EXPECT_LT(Clock::Real().Now() - begun, std::chrono::seconds(5));
  ExpectMode(**server);
}

TEST_P(OpenStreamTest, NewFilesAreUsedForNewConnectionsOnly) {
  TestObject& object = source_.Add(2, 4 << 20);
  object.SetFinal(1 << 20);
  auto server = TcpPeerServer::Start(server_options_, source_, Clock::Real());
  auto transport = MakeTcpTransport(transport_options_, Clock::Real());
  auto stream = (*transport)->Open((*server)->address(), ShardRequest(2, 0, 4 << 20), Far());
  ASSERT_TRUE(stream);
  std::vector<std::byte> unit(kPeerUnitBytes);
  ASSERT_TRUE((*stream)->Read(unit, Far()));
  // Another authority replaces the first one: its certificates, then only it is accepted.
  const c::Authority next = *c::Authority::Create("test", NowSeconds());
  Issue("server", "spiffe://test/agent/server", &next);
  Issue("client", "spiffe://test/agent/client", &next);
  ASSERT_TRUE(c::ReplaceFile(ca_, next.certificate().ToPem(), 0644).ok());
  EXPECT_EQ(FetchFrom(**transport, (*server)->address()), Status::Ok());
  const PeerTlsFiles old = Issue("old", "spiffe://test/agent/client");
  transport_options_.tls = {ca_, old.cert, old.key};
  auto outdated = MakeTcpTransport(transport_options_, Clock::Real());
  EXPECT_FALSE(FetchFrom(**outdated, (*server)->address()).ok()) << "of the first authority";
  // The stream that was open goes on.
  object.SetFinal(4 << 20);
  uint64_t bytes = 0;
  for (auto got = (*stream)->Read(unit, Far()); got && *got != 0;
       got = (*stream)->Read(unit, Far())) {
    bytes += *got;
  }
  EXPECT_EQ(bytes, 3U << 20);
  ExpectMode(**server);
}

TEST_F(PeerNameTest, FilesThatCannotBeUsedAreNotUsed) {
  auto server = TcpPeerServer::Start(server_options_, source_, Clock::Real());
  auto transport = MakeTcpTransport(transport_options_, Clock::Real());
  EXPECT_EQ(FetchFrom(**transport, (*server)->address()), Status::Ok());
  ASSERT_TRUE(c::ReplaceFile(server_options_.tls.cert, "damaged", 0600).ok());
  auto second = MakeTcpTransport(transport_options_, Clock::Real());
  EXPECT_EQ(FetchFrom(**second, (*server)->address()), Status::Ok());
}

UniqueFd ConnectSilently(const std::string& address) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

TEST_F(PeerNameTest, StrangersTakeNoPlaceOfAPeer) {
  server_options_.connections_max = 2;
  auto server = TcpPeerServer::Start(server_options_, source_, Clock::Real());
  auto transport = MakeTcpTransport(transport_options_, Clock::Real());
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(ConnectSilently((*server)->address()));
  const auto begun = Clock::Real().Now();
  EXPECT_EQ(FetchFrom(**transport, (*server)->address()), Status::Ok());
  EXPECT_LT(Clock::Real().Now() - begun, std::chrono::seconds(4)) << "before strangers time out";
  // Most of the strangers were ended: at most kStrangersMax are open.
  size_t open = 0;
  for (const UniqueFd& fd : silent) {
    char byte = 0;
    open += ::recv(fd.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN ? 1 : 0;
  }
  EXPECT_LE(open, kStrangersMax);
}

}  // namespace
}  // namespace holdfast::agent
