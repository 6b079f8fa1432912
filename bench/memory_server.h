#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/peers/tcp_server.h"
#include "agent/peers/tcp_transport.h"
#include "base/status.h"

namespace holdfast::bench {

/// Serves endless objects over loopback TCP as an agent does, by repeating the same memory.
class MemoryServer {
 public:
  /// Starts a server. `memory` must outlive it. `rate_bytes_per_s` 0: no limit.
  static Result<std::unique_ptr<MemoryServer>> Start(std::span<const std::byte> memory,
                                                     uint64_t rate_bytes_per_s);

  /// Reads `bytes` over `streams` concurrent streams, with all checksums. Returns the seconds.
  Result<double> Read(agent::PeerTransport& transport, int streams, uint64_t bytes) const;

 private:
  class Source;
  MemoryServer();

 public:
  ~MemoryServer();

 private:
  uint64_t memory_bytes_ = 0;
  std::unique_ptr<Source> source_;
  std::unique_ptr<agent::TcpPeerServer> server_;
};

Result<std::unique_ptr<agent::PeerTransport>> MakeBenchTransport();

/// Returns the seconds until `nodes` concurrent servers have each sent `bytes` over `streams`
/// streams.
Result<double> TransportSeconds(int nodes, int streams, uint64_t bytes, uint64_t rate_bytes_per_s);

}  // namespace holdfast::bench
