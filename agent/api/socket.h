#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/base/fd.h"
#include "storage/base/status.h"

// SEQPACKET sockets in the file system, with credentials and descriptor passing. Used between
// trainer and agent and between agent and keeper.

namespace holdfast::agent {

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

/// Listens at `path`, replacing a stale socket file but never one somebody still listens on
/// (AlreadyExists). `mode` is the file's permission bits. Paths over 107 bytes are refused clearly.
Result<UniqueFd> ListenUnix(const std::string& path, mode_t mode);
/// NotFound: no such socket (is the agent running?). PermissionDenied says who may. Unavailable:
/// nobody listens. The connection is blocking.
Result<UniqueFd> ConnectUnix(const std::string& path);
/// One waiting connection, nothing if none. It is non-blocking: a server never waits for a client.
Result<std::optional<UniqueFd>> AcceptUnix(int listener);
Result<PeerCredentials> CredentialsOf(int socket);
/// PidFdOf() of the process that connected, also when its children keep the socket open; safe
/// against a reused pid where the kernel has SO_PEERPIDFD.
Result<UniqueFd> PidFdOfPeer(int socket);

/// Sends one packet, with descriptors if any. Unavailable when the other side is gone;
/// ResourceExhausted when `socket` is non-blocking and full.
Status SendPacket(int socket, std::span<const std::byte> packet, std::span<const int> fds = {});

struct ReceivedPacket {
  std::vector<std::byte> bytes;  // empty: orderly end
  std::vector<UniqueFd> fds;     // at most 4; close-on-exec
};
/// Receives one packet of at most `bytes_max`; a longer one is InvalidArgument. With timeout_ms < 0
/// it waits for ever; DeadlineExceeded otherwise.
Result<ReceivedPacket> ReceivePacket(int socket, size_t bytes_max, int timeout_ms);

}  // namespace holdfast::agent
