#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"

// SEQPACKET sockets in the file system, with credentials and descriptor passing. They connect
// trainer and agent, and agent and keeper.

namespace holdfast::agent {

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

/// Listens at `path`. Replaces a stale socket file, but never one with a live listener
/// (AlreadyExists). `mode` is the file's permission bits. InvalidArgument for paths over 107 bytes.
Result<UniqueFd> ListenUnix(const std::string& path, mode_t mode, Clock& clock);
/// Connects to the listener at `path`; the returned socket is blocking. NotFound: there is no such
/// socket. PermissionDenied: the message names the socket's owner and mode. Unavailable: no process
/// listens, or its queue is full.
Result<UniqueFd> ConnectUnix(const std::string& path);
/// Returns one waiting connection, or nothing if there is none. Its socket is non-blocking: a
/// server never waits for a client.
Result<std::optional<UniqueFd>> AcceptUnix(int listener);
Result<PeerCredentials> CredentialsOf(int socket);
/// Returns a pidfd, as PidFdOf() does, of the process that connected, even if its children keep the
/// socket open. Safe against a reused PID where the kernel has SO_PEERPIDFD. NotFound: that process
/// has exited.
Result<UniqueFd> PidFdOfPeer(int socket);

/// Sends one packet with the descriptors, if any. Unavailable: the other side closed the
/// connection. ResourceExhausted: `socket` is non-blocking and its buffer is full.
Status SendPacket(int socket, std::span<const std::byte> packet, std::span<const int> fds = {});

struct ReceivedPacket {
  std::vector<std::byte> bytes;  // empty: orderly end
  std::vector<UniqueFd> fds;     // at most 4; close-on-exec
};
/// Receives one packet of at most `bytes_max` bytes; a longer packet is InvalidArgument. Blocks
/// until a packet arrives or `timeout_ms` have passed (DeadlineExceeded); < 0: no limit.
Result<ReceivedPacket> AwaitPacket(int socket, size_t bytes_max, int timeout_ms, Clock& clock);
/// As AwaitPacket(), without waiting.
Result<ReceivedPacket> ReceivePacket(int socket, size_t bytes_max);

}  // namespace holdfast::agent
