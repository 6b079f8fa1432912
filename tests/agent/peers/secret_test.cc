#include "agent/peers/secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "agent/peers/config.h"
#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

TEST(PeerSecretTest, IsAllBytesOfAPrivateFile) {
  TempDir dir;
  for (size_t bytes : {16, 17, 4096}) {
    const std::string secret(bytes - 1, 'k');
    EXPECT_EQ(ReadPeerSecret(dir.Write("secret", secret + "\n")).value(), secret + "\n");
  }
  for (mode_t mode : {0400, 0600, 0640, 0660}) {
    EXPECT_TRUE(ReadPeerSecret(dir.Write("secret", std::string(32, 'k'), mode)));
  }
}

TEST(PeerSecretTest, AFileThatOtherUsersCanAccessIsRefused) {
  TempDir dir;
  for (mode_t mode : {0604, 0602, 0601, 0644, 0666}) {
    const auto secret = ReadPeerSecret(dir.Write("secret", std::string(32, 'k'), mode));
    ASSERT_FALSE(secret) << mode;
    EXPECT_EQ(secret.error().code(), ErrorCode::kPermissionDenied);
    EXPECT_THAT(secret.error().message(), HasSubstr("chmod o="));
    ASSERT_EQ(::chmod((dir.path() + "/secret").c_str(), 0600), 0);
  }
}

TEST(PeerSecretTest, WrongLengthsAndOtherFileTypesAreRefused) {
  TempDir dir;
  for (size_t bytes : {0, 15, 4097, 100'000}) {
    const auto secret = ReadPeerSecret(dir.Write("secret", std::string(bytes, 'k')));
    ASSERT_FALSE(secret) << bytes;
    EXPECT_EQ(secret.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(secret.error().message(), HasSubstr("openssl rand"));
    EXPECT_THAT(secret.error().message(), HasSubstr(dir.path()));
  }
  EXPECT_EQ(ReadPeerSecret(dir.path() + "/none").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(ReadPeerSecret(dir.path()).error().code(), ErrorCode::kInvalidArgument);
  // Opening a FIFO must not block.
  const std::string fifo = dir.path() + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(ReadPeerSecret(fifo).error().code(), ErrorCode::kInvalidArgument);
}

TEST(PeersConfigTest, TlsIsRequiredBeyondThisMachine) {
  const Endpoint far = *ParseEndpoint("10.0.0.1:7072");
  EXPECT_EQ(RequireTls(far, true, "peers.listen"), Status::Ok());
  for (const char* local : {"127.0.0.1:0", "[::1]:0", "localhost:0", "unix:/run/p.sock"}) {
    EXPECT_EQ(RequireTls(*ParseEndpoint(local), false, "peers.listen"), Status::Ok());
  }
  for (const char* reachable : {"10.0.0.1:0", "0.0.0.0:0", "[::]:0", "node-7:0"}) {
    const Status status = RequireTls(*ParseEndpoint(reachable), false, "peers.listen");
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(std::string("peers.listen ") + reachable));
    EXPECT_THAT(status.message(), HasSubstr("set tls.ca"));
  }
}

TEST(PeersConfigTest, DefaultsAreValidAndRoundTrip) {
  PeersConfig config;
  ConfigSchema schema("peers");
  config.Bind(schema);
  EXPECT_EQ(config.Check(false), Status::Ok());
  const std::string text = schema.Render();
  EXPECT_EQ(schema.LoadText(text, "rendered"), Status::Ok());
  EXPECT_EQ(schema.Render(), text);
}

TEST(PeersConfigTest, EveryKeyReachesServerAndTransport) {
  PeersConfig config;
  ConfigSchema schema("peers");
  config.Bind(schema);
  ASSERT_EQ(schema.LoadText(R"(
    [peers]
    listen = "10.0.0.7:7072"
    secret_file = "/etc/holdfast/peers.secret"
    connections_max = 7
    rate_bytes_per_s = "2GiB"
    busy_rate_bytes_per_s = "100MB"
    yield_max_ms = 70
  )",
                            "test"),
            Status::Ok());
  EXPECT_EQ(config.Check(true), Status::Ok());
  const PeerTlsFiles tls{"ca", "cert", "key"};
  const TcpPeerServerOptions server = config.ServerOptions("c", "n", tls);
  EXPECT_EQ(server.cluster, "c");
  EXPECT_EQ(server.node, "n");
  EXPECT_EQ(server.listen, "10.0.0.7:7072");
  EXPECT_EQ(server.secret_file, "/etc/holdfast/peers.secret");
  EXPECT_EQ(server.connections_max, 7U);
  EXPECT_EQ(server.pace.rate_bytes_per_s, 2ULL << 30);
  EXPECT_EQ(server.pace.busy_rate_bytes_per_s, 100'000'000U);
  EXPECT_EQ(server.pace.yield_max, std::chrono::milliseconds(70));
  EXPECT_EQ(server.tls.key, "key");
  const TcpTransportOptions transport = config.TransportOptions("c", "n", tls);
  EXPECT_EQ(transport.cluster, "c");
  EXPECT_EQ(transport.node, "n");
  EXPECT_EQ(transport.secret_file, "/etc/holdfast/peers.secret");
  EXPECT_EQ(transport.tls.ca, "ca");
}

TEST(PeersConfigTest, InvalidValuesAreRefused) {
  PeersConfig config;
  config.listen = "nowhere";
  EXPECT_THAT(config.Check(false).message(), HasSubstr("peers.listen"));
  config.listen = "0.0.0.0:7072";
  EXPECT_THAT(config.Check(false).message(), HasSubstr("set tls.ca"));
  config.secret_file = "relative";
  EXPECT_THAT(config.Check(true).message(), HasSubstr("absolute"));
  config.secret_file = "/etc/secret";
  EXPECT_THAT(config.Check(false).message(), HasSubstr("set tls.ca")) << "a secret is not enough";
  EXPECT_EQ(config.Check(true), Status::Ok());
  // A machine that reaches this address reaches peers.listen.
  config.listen = "127.0.0.1:7072";
  EXPECT_EQ(config.Check(false), Status::Ok());
  config.advertise = "10.0.0.1:7072";
  EXPECT_THAT(config.Check(false).message(), HasSubstr("peers.advertise 10.0.0.1:7072"));
  EXPECT_EQ(config.Check(true), Status::Ok());
}

}  // namespace
}  // namespace holdfast::agent
