#include "agent/peers/config.h"

#include <fmt/format.h>

#include <chrono>

#include "agent/peers/address.h"
#include "agent/peers/secret.h"
#include "agent/peers/tls.h"

namespace holdfast::agent {

void PeersConfig::Bind(ConfigSchema& schema) {
  schema.Add("peers.listen", &listen,
             "Where other nodes read parity and shards: host:port (0: any) or unix:/path.");
  schema.Add("peers.advertise", &advertise,
             "The address that other nodes are told, where it is not peers.listen: host:port or "
             "unix:/path.");
  schema.Add(
      "peers.secret_file", &secret_file,
      "File of 16 to 4096 bytes, the same on all nodes, that others may not read; needed where "
      "other machines reach peers.listen.");
  schema.Add("peers.connections_max", &connections_max,
             "Connections of peers served at once; further ones are refused.", 1, 4096);
  schema.AddBytes("peers.rate_bytes_per_s", &rate_bytes_per_s,
                  "Send to peers at most so many bytes a second; 0: as fast as it goes.");
  schema.AddBytes("peers.busy_rate_bytes_per_s", &busy_rate_bytes_per_s,
                  "The same while the trainers' own traffic runs; 0: nothing meanwhile.");
  schema.Add(
      "peers.yield_max_ms", &yield_max_ms,
      "Yield to the trainers' own traffic for so long in one go, and for half of the time at "
      "most; 0: never.",
      0, 60'000);
}

Status PeersConfig::Check() const {
  const auto address = ParsePeerAddress(listen);
  if (!address) return address.error().WithContext("peers.listen");
  if (!secret_file.empty() && secret_file.front() != '/') {
    return InvalidArgumentError(
        fmt::format("peers.secret_file '{}' is not an absolute path", secret_file));
  }
  HOLDFAST_RETURN_IF_ERROR(RequireSecret(*address, !secret_file.empty(), "peers.listen"));
  if (advertise.empty()) return Status::Ok();
  const auto told = ParsePeerAddress(advertise);
  if (!told) return told.error().WithContext("peers.advertise");
  if (told->kind == PeerAddress::Kind::kTcp && told->port == 0) {
    return InvalidArgumentError(fmt::format("peers.advertise '{}' has no port", advertise));
  }
  // Whoever reaches it reaches peers.listen.
  return RequireSecret(*told, !secret_file.empty(), "peers.advertise");
}

Status PeersConfig::CheckFiles(const PeerTlsFiles& tls) const {
  if (!secret_file.empty()) {
    auto secret = ReadPeerSecret(secret_file);
    if (!secret) return secret.error();
  }
  if (tls.ca.empty() && tls.cert.empty() && tls.key.empty()) return Status::Ok();
  auto context = TlsContext::Load(tls, TlsContext::Role::kServer);
  return context ? Status::Ok() : context.error();
}

TcpPeerServerOptions PeersConfig::ServerOptions(const std::string& cluster, const std::string& node,
                                                const PeerTlsFiles& tls) const {
  TcpPeerServerOptions options;
  options.cluster = cluster;
  options.node = node;
  options.listen = listen;
  options.secret_file = secret_file;
  options.tls = tls;
  options.pace.rate_bytes_per_s = rate_bytes_per_s;
  options.pace.busy_rate_bytes_per_s = busy_rate_bytes_per_s;
  options.pace.yield_max = std::chrono::milliseconds(yield_max_ms);
  options.connections_max = static_cast<size_t>(connections_max);
  return options;
}

TcpTransportOptions PeersConfig::TransportOptions(const std::string& cluster,
                                                  const std::string& node,
                                                  const PeerTlsFiles& tls) const {
  TcpTransportOptions options;
  options.cluster = cluster;
  options.node = node;
  options.secret_file = secret_file;
  options.tls = tls;
  return options;
}

}  // namespace holdfast::agent
