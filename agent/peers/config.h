#pragma once

#include <cstdint>
#include <string>

#include "agent/peers/tcp_server.h"
#include "agent/peers/tcp_transport.h"
#include "agent/peers/tls.h"
#include "base/config.h"
#include "base/status.h"

namespace holdfast::agent {

/// The section [peers] of an agent's configuration.
struct PeersConfig {
  std::string listen;     // empty: peers.sock in the agent's run_dir
  std::string advertise;  // empty: listen
  std::string secret_file;
  bool encrypt = true;
  int64_t connections_max = 64;
  uint64_t rate_bytes_per_s = 0;
  uint64_t busy_rate_bytes_per_s = 0;
  int64_t yield_max_ms = 200;

  /// Adds every field to `schema`. The configuration must outlive the schema.
  void Bind(ConfigSchema& schema);
  /// Checks what the schema cannot. Does not read files; server and transport do when they start.
  /// `has_tls`: the node has certificates. Without, only addresses of this machine are accepted.
  Status Check(bool has_tls) const;
  /// Checks that the configured secret and TLS files are usable.
  Status CheckFiles(const PeerTlsFiles& tls) const;

  TcpPeerServerOptions ServerOptions(const std::string& cluster, const std::string& node,
                                     const PeerTlsFiles& tls) const;
  TcpTransportOptions TransportOptions(const std::string& cluster, const std::string& node,
                                       const PeerTlsFiles& tls) const;
};

}  // namespace holdfast::agent
