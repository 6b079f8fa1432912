#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "agent/peers/tls.h"
#include "agent/peers/transport.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"

namespace holdfast::agent {

struct TcpTransportOptions {
  std::string cluster;
  std::string node;
  std::string secret_file;  // needed to reach other machines
  PeerTlsFiles tls;
  /// Connections whose stream has ended wait here for the next one: so many an address, so long. A
  /// server waits longer (PeerServerTimeouts::idle).
  size_t idle_max = 4;
  Clock::Duration idle_timeout = std::chrono::seconds(30);
  /// Counts the data received, without frames; outlives transport and streams. Null: not counted.
  std::atomic<uint64_t>* received_bytes = nullptr;
};

/// Reaches TcpPeerServers. One stream has one connection to itself; no threads of its own: name
/// look-ups aside, all work is done in the callers'. InvalidArgument for options that cannot work.
Result<std::unique_ptr<PeerTransport>> MakeTcpTransport(const TcpTransportOptions& options);

}  // namespace holdfast::agent
