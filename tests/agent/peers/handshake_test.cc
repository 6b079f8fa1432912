#include "agent/peers/handshake.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <optional>
#include <thread>
#include <tuple>

#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

Introduction Example(int first_nonce_byte, const std::string& node) {
  Introduction introduction;
  introduction.has_secret = true;
  for (size_t i = 0; i < kNonceBytes; ++i) {
    introduction.nonce[i] = static_cast<std::byte>(first_nonce_byte + static_cast<int>(i));
  }
  introduction.cluster = "prod";
  introduction.node = node;
  return introduction;
}

std::string Hex(const PeerProof& proof) {
  std::string text;
  for (std::byte byte : proof) text += fmt::format("{:02x}", static_cast<int>(byte));
  return text;
}

// Made with another implementation of HMAC-SHA256.
TEST(HandshakeTest, ProofsOfTheFormatPage) {
  const Introduction client = Example(0, "node-1");
  const Introduction server = Example(32, "node-2");
  EXPECT_EQ(Hex(*MakeProof("0123456789abcdef", "client", client, server)),
            "7ad5251e33da519df575c96de9cfd76de2724d1418812af378ac6a33bdf3484d");
  EXPECT_EQ(Hex(*MakeProof("0123456789abcdef", "server", client, server)),
            "ced9577828f4b576734180c267109361c905b133d086c2b0b28f12aa091d3009");
}

TEST(HandshakeTest, AProofIsValidForOneHandshakeOnly) {
  const Introduction client = Example(0, "node-1");
  const Introduction server = Example(32, "node-2");
  const PeerProof proof = *MakeProof("0123456789abcdef", "client", client, server);
  const auto differs = [&](const std::string& secret, const Introduction& a,
                           const Introduction& b) {
    return *MakeProof(secret, "client", a, b) != proof;
  };
  EXPECT_TRUE(differs("0123456789abcdeg", client, server));
  EXPECT_TRUE(differs("0123456789abcdef", server, client)) << "a reflected proof is invalid";
  for (const std::function<void(Introduction&)>& change :
       {std::function<void(Introduction&)>([](Introduction& i) { i.nonce[31] ^= std::byte{1}; }),
        std::function<void(Introduction&)>([](Introduction& i) { i.cluster += "x"; }),
        std::function<void(Introduction&)>([](Introduction& i) { i.node += "x"; })}) {
    Introduction other = client;
    change(other);
    EXPECT_TRUE(differs("0123456789abcdef", other, server));
    other = server;
    change(other);
    EXPECT_TRUE(differs("0123456789abcdef", client, other));
  }
}

struct Outcome {
  Result<std::string> client = Fail(InternalError("not run"));
  Result<std::string> server = Fail(InternalError("not run"));
};

/// Runs both sides of a handshake over a pair of sockets.
Outcome Shake(const PeerIdentity& client, const PeerIdentity& server) {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  Outcome outcome;
  auto to_server = std::make_unique<Channel>(UniqueFd(fds[0]), "the server", Clock::Real());
  std::thread serving([&, fd = fds[1]] {
    Channel to_client{UniqueFd(fd), "the client", Clock::Real()};
    outcome.server = ShakeHandsAsServer(to_client, server, Far());
    if (!outcome.server) SendRefusal(to_client, outcome.server.error());
  });
  outcome.client = ShakeHandsAsClient(*to_server, client, Far());
  to_server.reset();
  serving.join();
  return outcome;
}

TEST(HandshakeTest, BothSidesLearnTheOtherNodesName) {
  for (const std::string& secret : {std::string(), std::string(40, 's')}) {
    const Outcome outcome = Shake({"prod", "a", secret}, {"prod", "b", secret});
    EXPECT_EQ(outcome.client.value_or(""), "b");
    EXPECT_EQ(outcome.server.value_or(""), "a");
  }
}

TEST(HandshakeTest, BothSidesRefuseWithAReason) {
  const std::string secret(32, 's');
  const std::string wrong(32, 'w');
  Outcome outcome = Shake({"prod", "a", wrong}, {"prod", "b", secret});
  EXPECT_EQ(outcome.server.error().code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(outcome.client.error().code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(outcome.client.error().message(), HasSubstr("node a does not know"));
  for (bool client_has : {true, false}) {
    outcome =
        Shake({"prod", "a", client_has ? secret : ""}, {"prod", "b", client_has ? "" : secret});
    EXPECT_EQ(outcome.server.error().code(), ErrorCode::kPermissionDenied);
    EXPECT_EQ(outcome.client.error().code(), ErrorCode::kPermissionDenied);
    EXPECT_THAT(outcome.client.error().message(), HasSubstr("set peers.secret_file"));
  }
  outcome = Shake({"prod", "a", secret}, {"test", "b", secret});
  EXPECT_EQ(outcome.server.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(outcome.client.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(outcome.client.error().message(), HasSubstr("cluster test"));
}

/// Returns the server's answer to a client whose proof has byte `wrong` changed, or no byte.
Status ProofWithChange(const std::string& secret, std::optional<size_t> wrong) {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  Result<std::string> served = Fail(InternalError("not run"));
  std::thread serving([&, fd = fds[1]] {
    Channel to_client{UniqueFd(fd), "the client", Clock::Real()};
    served = ShakeHandsAsServer(to_client, {"prod", "b", secret}, Far());
  });
  {
    Channel to_server{UniqueFd(fds[0]), "the server", Clock::Real()};
    const Introduction client = Example(0, "a");
    EXPECT_TRUE(to_server.SendText(FrameKind::kHello, EncodeIntroduction(client), Far()).ok());
    auto challenge = to_server.ReceiveFrame(FrameKind::kChallenge, Far());
    EXPECT_TRUE(challenge);
    PeerProof proof = *MakeProof(secret, "client", client, *DecodeIntroduction(*challenge));
    if (wrong) proof[*wrong] ^= std::byte{0x40};
    const std::string text(reinterpret_cast<const char*>(proof.data()), proof.size());
    EXPECT_TRUE(to_server.SendText(FrameKind::kProof, text, Far()).ok());
    serving.join();
  }
  return served ? Status::Ok() : served.error();
}

TEST(HandshakeTest, EveryByteOfAProofCounts) {
  const std::string secret(32, 's');
  EXPECT_EQ(ProofWithChange(secret, std::nullopt), Status::Ok());
  for (size_t byte = 0; byte < std::tuple_size_v<PeerProof>; ++byte) {
    EXPECT_EQ(ProofWithChange(secret, byte).code(), ErrorCode::kPermissionDenied)
        << "byte " << byte;
  }
}

/// Runs a handshake with a server that does not have the secret and sends scripted answers.
Result<std::string> AgainstImpostor(const PeerIdentity& client,
                                    const std::function<std::string(const Introduction&)>& welcome,
                                    bool claims_secret) {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  Channel to_server{UniqueFd(fds[0]), "the server", Clock::Real()};
  std::thread impostor([&, fd = fds[1]] {
    Channel to_client{UniqueFd(fd), "the client", Clock::Real()};
    auto hello = to_client.ReceiveFrame(FrameKind::kHello, Far());
    if (!hello) return;
    const Introduction client_hello = *DecodeIntroduction(*hello);
    // Repeats the client's introduction and nonce, to reflect the client's proof.
    Introduction mine = client_hello;
    mine.has_secret = claims_secret;
    ASSERT_TRUE(to_client.SendText(FrameKind::kChallenge, EncodeIntroduction(mine), Far()).ok());
    auto proof = to_client.ReceiveFrame(FrameKind::kProof, Far());
    if (!proof) return;
    std::string answer = welcome(client_hello);
    if (answer == "reflect") {
      answer.assign(reinterpret_cast<const char*>(proof->data()), proof->size());
    }
    ASSERT_TRUE(to_client.SendText(FrameKind::kWelcome, answer, Far()).ok());
  });
  auto outcome = ShakeHandsAsClient(to_server, client, Far());
  to_server.Shut();
  impostor.join();
  return outcome;
}

TEST(HandshakeTest, AServerWithoutTheSecretIsRefused) {
  const PeerIdentity client{"prod", "a", std::string(32, 's')};
  for (const std::string& answer : {std::string("reflect"), std::string(), std::string(32, '\0')}) {
    const auto outcome = AgainstImpostor(
        client, [&](const Introduction&) { return answer; }, true);
    ASSERT_FALSE(outcome) << answer;
    EXPECT_EQ(outcome.error().code(), ErrorCode::kPermissionDenied);
  }
  const auto downgraded = AgainstImpostor(
      client, [](const Introduction&) { return std::string(); }, false);
  ASSERT_FALSE(downgraded);
  EXPECT_EQ(downgraded.error().code(), ErrorCode::kPermissionDenied)
      << "no downgrade to a handshake without a secret";
}

TEST(HandshakeTest, ASilentServerCostsNoMoreThanTheDeadline) {
  int fds[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  Channel to_server{UniqueFd(fds[0]), "the server", Clock::Real()};
  const UniqueFd silent(fds[1]);
  const auto outcome = ShakeHandsAsClient(to_server, {"prod", "a", ""}, In(50));
  EXPECT_EQ(outcome.error().code(), ErrorCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace holdfast::agent
