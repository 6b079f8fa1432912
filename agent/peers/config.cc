#include "agent/peers/config.h"

#include <fmt/format.h>

#include <chrono>

#include "agent/peers/secret.h"
#include "agent/peers/sockets.h"
#include "agent/peers/tls.h"

namespace holdfast::agent {

void PeersConfig::Bind(ConfigSchema& schema) {
  schema.Add("peers.listen", &listen,
             "Address at which other nodes read parity and shards: host:port (port 0: any) or "
             "unix:/path. A loopback address only with peers.secret_file, [tls] or "
             "insecure_loopback. Empty: peers.sock in run_dir, for nodes of one machine.");
  schema.Add("peers.advertise", &advertise,
             "Address that other nodes use, if it differs from peers.listen: host:port or "
             "unix:/path.");
  schema.Add("peers.secret_file", &secret_file,
             "File of 16 to 4096 bytes, the same on all nodes, unreadable for other users: peers "
             "must know "
             "it in addition to their certificates. Needed only where certificates have no names.");
  schema.Retire("peers.plain_text",
                "other machines reach this node over TLS only. Join the cluster with `holdfast "
                "join`, or set tls.ca, tls.cert and tls.key. With peers.encrypt = false frames are "
                "not encrypted, and have tags");
  schema.Add(
      "peers.encrypt", &encrypt,
      "Encrypt transfers where [tls] is set. False: a connection whose other side agrees has a "
      "tag for each frame instead. Anyone who can read packets of that network then reads "
      "versions, but cannot change them. A transfer then takes about half of the CPU time.");
  schema.Add(
      "peers.connections_max", &connections_max,
      "Maximum of concurrent connections of peers; further ones are refused. Connections that "
      "have not proved who they are do not count: at most 16 of them are open.",
      1, 4096);
  schema.AddBytes("peers.rate_bytes_per_s", &rate_bytes_per_s,
                  "Limit for sending to peers, bytes per second; 0: unlimited.");
  schema.AddBytes("peers.busy_rate_bytes_per_s", &busy_rate_bytes_per_s,
                  "The same limit while collectives of trainers run; 0: pause sending.");
  schema.Add(
      "peers.yield_max_ms", &yield_max_ms,
      "Longest continuous time at that limit, which also holds for at most half of the time; 0: "
      "never.",
      0, 60'000);
}

Status PeersConfig::Check(bool has_tls) const {
  const auto address = ParseEndpoint(listen.empty() ? "unix:/peers.sock" : listen);
  if (!address) return address.error().WithContext("peers.listen");
  if (!secret_file.empty() && secret_file.front() != '/') {
    return InvalidArgumentError(
        fmt::format("peers.secret_file '{}' is not an absolute path", secret_file));
  }
  HOLDFAST_RETURN_IF_ERROR(RequireTls(*address, has_tls, "peers.listen"));
  if (advertise.empty()) return Status::Ok();
  const auto advertised = ParseEndpoint(advertise);
  if (!advertised) return advertised.error().WithContext("peers.advertise");
  if (advertised->kind == Endpoint::Kind::kTcp && advertised->port == 0) {
    return InvalidArgumentError(fmt::format("peers.advertise '{}' has no port", advertise));
  }
  // A machine that reaches this address reaches peers.listen.
  return RequireTls(*advertised, has_tls, "peers.advertise");
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
  options.encrypt = encrypt;
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
  options.encrypt = encrypt;
  return options;
}

}  // namespace holdfast::agent
