#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "agent/peers/channel.h"
#include "agent/peers/messages.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace holdfast::agent {

/// Who a node is to its peers.
struct PeerIdentity {
  std::string cluster;
  std::string node;
  std::string secret;  // shared by all nodes; empty: none, and everybody of the cluster is believed
};

inline constexpr size_t kProofBytes = 32;
using PeerProof = std::array<std::byte, kProofBytes>;

/// What one side ("client" or "server") sends to show that it knows the secret: HMAC-SHA256 over
/// its role, the protocol and everything that both sides said. Neither a replay nor a reflection of
/// the other side's proof is one.
Result<PeerProof> MakeProof(const std::string& secret, std::string_view role,
                            const Introduction& client, const Introduction& server);

/// Both sides show that they belong to the same cluster and know its secret; the client first, so
/// that a stranger gets nothing to try guesses on. Return the other node's name.
/// FailedPrecondition: another cluster; PermissionDenied: no secret, or another one; Unsupported:
/// another protocol; or a channel's errors.
Result<std::string> ShakeHandsAsClient(Channel& channel, const PeerIdentity& self,
                                       Clock::TimePoint deadline);
Result<std::string> ShakeHandsAsServer(Channel& channel, const PeerIdentity& self,
                                       Clock::TimePoint deadline);

/// Tells the other side why the connection ends, as far as it listens.
void SendRefusal(Channel& channel, const Status& why);

}  // namespace holdfast::agent
