#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "agent/peers/tls.h"
#include "agent/peers/transport.h"
#include "base/certificates/revoked_names.h"
#include "base/clock.h"
#include "base/status.h"

namespace holdfast::agent {

struct TcpTransportOptions {
  std::string cluster;
  std::string node;
  std::string secret_file;
  PeerTlsFiles tls;     // required to reach other machines
  bool encrypt = true;  // false: not with servers that allow frames with tags
  const certificates::RevokedNames* revoked = nullptr;  // outlives the transport; null: none
  /// How many idle connections per address are kept for later streams, and for how long. A server
  /// keeps them longer (PeerServerTimeouts::idle).
  size_t idle_max = 4;
  Clock::Duration idle_timeout = std::chrono::seconds(30);
  /// Counts the data received, without frames. Must outlive transport and streams. Null: not
  /// counted.
  std::atomic<uint64_t>* received_bytes = nullptr;
};

/// Returns a client of TcpPeerServers. Each stream uses one connection exclusively. Except for name
/// lookups, all work happens in the callers' threads. `clock` outlives the client. InvalidArgument
/// for invalid options.
Result<std::unique_ptr<PeerTransport>> MakeTcpTransport(const TcpTransportOptions& options,
                                                        const Clock& clock);

}  // namespace holdfast::agent
