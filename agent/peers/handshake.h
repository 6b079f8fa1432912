#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "agent/peers/channel.h"
#include "agent/peers/messages.h"
#include "base/clock.h"
#include "base/status.h"

namespace holdfast::agent {

/// The identity that a node presents to its peers.
struct PeerIdentity {
  std::string cluster;
  std::string node;
  std::string secret;  // shared by all nodes; empty: none, every node of the cluster is trusted
};

inline constexpr size_t kProofBytes = 32;
using PeerProof = std::array<std::byte, kProofBytes>;

/// Returns the proof of one side ("client" or "server") that it knows the secret: HMAC-SHA256 over
/// its role, the protocol and both introductions. Neither a replay nor a reflection of the other
/// side's proof is valid.
Result<PeerProof> MakeProof(const std::string& secret, std::string_view role,
                            const Introduction& client, const Introduction& server);

/// Both sides prove that they belong to the same cluster and know its secret. The client sends its
/// proof first, so that a client without the secret gets no proof against which it could test
/// guesses. Frames after the handshake have tags, if TLS agreed
/// on that. Both return the other node's name. FailedPrecondition: another cluster;
/// PermissionDenied: only one side has a secret, or the secrets differ; Unsupported: another
/// protocol; or the channel's errors.
Result<std::string> ShakeHandsAsClient(Channel& channel, const PeerIdentity& self,
                                       Clock::TimePoint deadline);
Result<std::string> ShakeHandsAsServer(Channel& channel, const PeerIdentity& self,
                                       Clock::TimePoint deadline);

/// Sends the other side the reason for the end of the connection; errors are ignored.
void SendRefusal(Channel& channel, const Status& why);

}  // namespace holdfast::agent
