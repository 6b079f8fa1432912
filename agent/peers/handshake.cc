#include "agent/peers/handshake.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <chrono>
#include <cstring>
#include <vector>

namespace holdfast::agent {
namespace {

constexpr auto kRefusalSendWait = std::chrono::seconds(1);

Result<Introduction> Introduce(const PeerIdentity& self) {
  Introduction introduction;
  introduction.has_secret = !self.secret.empty();
  introduction.cluster = self.cluster;
  introduction.node = self.node;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(introduction.nonce.data()), kNonceBytes) != 1) {
    return Fail(InternalError("OpenSSL returned no random numbers"));
  }
  return introduction;
}

/// Checks that both nodes belong to the same cluster and both or neither have a secret.
Status CheckIntroduction(const Introduction& other, const PeerIdentity& self) {
  if (other.cluster != self.cluster) {
    return FailedPreconditionError(
        fmt::format("node {} belongs to cluster {}, but node {} to cluster {}", other.node,
                    other.cluster, self.node, self.cluster));
  }
  if (other.has_secret == !self.secret.empty()) return Status::Ok();
  return PermissionDeniedError(fmt::format(
      "node {} has a peer secret and node {} has none: set peers.secret_file to the "
      "same secret on all nodes",
      other.has_secret ? other.node : self.node, other.has_secret ? self.node : other.node));
}

/// Returns the payload of Proof and Welcome; empty without a secret.
Result<std::string> ProofPayload(const PeerIdentity& self, std::string_view role,
                                 const Introduction& client, const Introduction& server) {
  if (self.secret.empty()) return std::string();
  HOLDFAST_ASSIGN_OR_RETURN(const PeerProof proof, MakeProof(self.secret, role, client, server));
  return std::string(reinterpret_cast<const char*>(proof.data()), proof.size());
}

Status CheckProof(const std::string& expected, const std::vector<std::byte>& got,
                  const std::string& node) {
  // In constant time, so that timing does not reveal how much of a guess is right.
  if (got.size() == expected.size() &&
      CRYPTO_memcmp(got.data(), expected.data(), expected.size()) == 0) {
    return Status::Ok();
  }
  return PermissionDeniedError(fmt::format(
      "node {} does not know the peer secret of this node: peers.secret_file must hold the same "
      "bytes on all nodes",
      node));
}

Status ProofAsClient(Channel& channel, const PeerIdentity& self, Clock::TimePoint deadline,
                     std::string* server_node) {
  HOLDFAST_ASSIGN_OR_RETURN(const Introduction client, Introduce(self));
  HOLDFAST_RETURN_IF_ERROR(
      channel.SendText(FrameKind::kHello, EncodeIntroduction(client), deadline));
  HOLDFAST_ASSIGN_OR_RETURN(const auto challenge,
                            channel.ReceiveFrame(FrameKind::kChallenge, deadline));
  HOLDFAST_ASSIGN_OR_RETURN(const Introduction server, DecodeIntroduction(challenge));
  HOLDFAST_RETURN_IF_ERROR(CheckIntroduction(server, self));
  HOLDFAST_ASSIGN_OR_RETURN(const std::string proof, ProofPayload(self, "client", client, server));
  HOLDFAST_RETURN_IF_ERROR(channel.SendText(FrameKind::kProof, proof, deadline));
  HOLDFAST_ASSIGN_OR_RETURN(const auto welcome,
                            channel.ReceiveFrame(FrameKind::kWelcome, deadline));
  HOLDFAST_ASSIGN_OR_RETURN(const std::string expected,
                            ProofPayload(self, "server", client, server));
  *server_node = server.node;
  return CheckProof(expected, welcome, server.node);
}

Status ProofAsServer(Channel& channel, const PeerIdentity& self, Clock::TimePoint deadline,
                     std::string* client_node) {
  HOLDFAST_ASSIGN_OR_RETURN(const auto hello, channel.ReceiveFrame(FrameKind::kHello, deadline));
  HOLDFAST_ASSIGN_OR_RETURN(const Introduction client, DecodeIntroduction(hello));
  HOLDFAST_RETURN_IF_ERROR(CheckIntroduction(client, self));
  HOLDFAST_ASSIGN_OR_RETURN(const Introduction server, Introduce(self));
  HOLDFAST_RETURN_IF_ERROR(
      channel.SendText(FrameKind::kChallenge, EncodeIntroduction(server), deadline));
  HOLDFAST_ASSIGN_OR_RETURN(const auto proof, channel.ReceiveFrame(FrameKind::kProof, deadline));
  HOLDFAST_ASSIGN_OR_RETURN(const std::string expected,
                            ProofPayload(self, "client", client, server));
  HOLDFAST_RETURN_IF_ERROR(CheckProof(expected, proof, client.node));
  HOLDFAST_ASSIGN_OR_RETURN(const std::string welcome,
                            ProofPayload(self, "server", client, server));
  *client_node = client.node;
  return channel.SendText(FrameKind::kWelcome, welcome, deadline);
}

}  // namespace

Result<PeerProof> MakeProof(const std::string& secret, std::string_view role,
                            const Introduction& client, const Introduction& server) {
  // Each part contains its lengths, so that two different handshakes never give the same text.
  const std::string text = fmt::format("holdfast peer {} {}\n", kPeerProtocol, role) +
                           EncodeIntroduction(client) + EncodeIntroduction(server);
  PeerProof proof;
  unsigned int bytes = 0;
  const auto* made = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                          reinterpret_cast<unsigned char*>(proof.data()), &bytes);
  if (made == nullptr || bytes != proof.size()) {
    return Fail(InternalError("OpenSSL returned no HMAC"));
  }
  return proof;
}

Result<std::string> ShakeHandsAsClient(Channel& channel, const PeerIdentity& self,
                                       Clock::TimePoint deadline) {
  std::string server_node;
  const Status status = ProofAsClient(channel, self, deadline, &server_node);
  if (status.ok()) {
    HOLDFAST_RETURN_IF_ERROR(channel.BeginTags());
    return server_node;
  }
  // A server that refuses sends the reason before it closes the connection.
  if (status.code() == ErrorCode::kUnavailable) return Fail(channel.RefusalOr(status));
  return Fail(status);
}

Result<std::string> ShakeHandsAsServer(Channel& channel, const PeerIdentity& self,
                                       Clock::TimePoint deadline) {
  std::string client_node;
  HOLDFAST_RETURN_IF_ERROR(ProofAsServer(channel, self, deadline, &client_node));
  HOLDFAST_RETURN_IF_ERROR(channel.BeginTags());
  return client_node;
}

void SendRefusal(Channel& channel, const Status& why) {
  const std::string payload = EncodeError(why);
  const Status sent = channel.Send(FrameKind::kError, std::as_bytes(std::span(payload)), kNoStamp,
                                   channel.clock().Now() + kRefusalSendWait, kFrameOfConnection);
  static_cast<void>(sent);  // the connection ends either way
}

}  // namespace holdfast::agent
