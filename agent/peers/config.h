#pragma once

#include <cstdint>
#include <string>

#include "agent/peers/tcp_server.h"
#include "agent/peers/tcp_transport.h"
#include "agent/peers/tls.h"
#include "storage/base/config.h"
#include "storage/base/status.h"

namespace holdfast::agent {

/// The section [peers] of an agent's configuration.
struct PeersConfig {
  std::string listen = "127.0.0.1:0";
  std::string advertise;  // empty: listen
  std::string secret_file;
  int64_t connections_max = 64;
  uint64_t rate_bytes_per_s = 0;
  uint64_t busy_rate_bytes_per_s = 0;
  int64_t yield_max_ms = 200;

  /// Binds every field; the config outlives the schema.
  void Bind(ConfigSchema& schema);
  /// What the schema cannot check. Files are read when server and transport start.
  Status Check() const;
  /// The secret and the TLS files can be used; files that are not configured are not looked for.
  Status CheckFiles(const PeerTlsFiles& tls) const;

  TcpPeerServerOptions ServerOptions(const std::string& cluster, const std::string& node,
                                     const PeerTlsFiles& tls) const;
  TcpTransportOptions TransportOptions(const std::string& cluster, const std::string& node,
                                       const PeerTlsFiles& tls) const;
};

}  // namespace holdfast::agent
