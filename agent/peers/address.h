#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "storage/base/clock.h"
#include "storage/base/fd.h"
#include "storage/base/status.h"

namespace holdfast::agent {

/// Where a node serves its peers: "10.0.0.7:7072", "[::1]:0", "host:7072" or "unix:/path".
struct PeerAddress {
  enum class Kind { kUnix, kTcp };
  Kind kind = Kind::kTcp;
  std::string path;  // kUnix: absolute
  std::string host;  // kTcp: an address without brackets, or a name
  uint16_t port = 0;
  bool operator==(const PeerAddress&) const = default;

  /// Only reachable from this machine: a unix socket, 127.0.0.0/8, ::1 or "localhost", which
  /// stands for 127.0.0.1 here whatever a resolver says.
  bool IsLocal() const;
  /// The form that ParsePeerAddress reads.
  std::string ToString() const;
};

/// InvalidArgument says what is wrong and shows the accepted forms.
Result<PeerAddress> ParsePeerAddress(std::string_view text);

/// A non-blocking listener; `address` gets the port that was bound. A stale socket file is
/// replaced, one that somebody listens on is not (AlreadyExists). Only this user reaches a socket
/// file.
Result<UniqueFd> ListenAt(PeerAddress& address);

/// A connected, non-blocking socket. Unavailable: nobody listens there or it cannot be reached;
/// DeadlineExceeded, also for the resolving of a name.
Result<UniqueFd> ConnectTo(const PeerAddress& address, Clock::TimePoint deadline);

/// Frames go out at once, whatever their size. Nothing for a unix socket.
void DisableDelay(int socket);

/// Milliseconds for poll() until `deadline`, rounded up; 0 when it has passed.
int PollMsUntil(Clock::TimePoint deadline);

}  // namespace holdfast::agent
