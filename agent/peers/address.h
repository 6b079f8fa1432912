#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "storage/base/clock.h"
#include "storage/base/fd.h"
#include "storage/base/status.h"

namespace holdfast::agent {

/// The address at which a node serves its peers: "10.0.0.7:7072", "[::1]:0", "host:7072" or
/// "unix:/path".
struct PeerAddress {
  enum class Kind { kUnix, kTcp };
  Kind kind = Kind::kTcp;
  std::string path;  // kUnix: absolute
  std::string host;  // kTcp: an address without brackets, or a name
  uint16_t port = 0;
  bool operator==(const PeerAddress&) const = default;

  /// Returns whether the address is reachable from this machine only: a unix socket, 127.0.0.0/8,
  /// ::1 or "localhost", which always stands for 127.0.0.1 here, independent of the resolver.
  bool IsLocal() const;
  /// Returns the form that ParsePeerAddress() reads.
  std::string ToString() const;
};

/// Parses an address. InvalidArgument: the message names the problem and the accepted forms.
Result<PeerAddress> ParsePeerAddress(std::string_view text);

/// Returns a non-blocking listener and sets the bound port in `address`. Replaces a stale socket
/// file, but not one with a live listener (AlreadyExists). Only this user may access a socket file.
Result<UniqueFd> ListenAt(PeerAddress& address);

/// Returns a connected, non-blocking socket. Unavailable: no process listens there or the address
/// is unreachable. DeadlineExceeded: also when resolving a name takes too long.
Result<UniqueFd> ConnectTo(const PeerAddress& address, Clock::TimePoint deadline);

/// Disables Nagle's algorithm, so that frames of any size are sent immediately. No effect on a unix
/// socket.
void DisableDelay(int socket);

/// Returns the milliseconds until `deadline` for poll(), rounded up; 0 when the deadline has
/// passed.
int PollMsUntil(Clock::TimePoint deadline);

}  // namespace holdfast::agent
