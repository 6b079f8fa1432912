#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "coordinator/api/endpoint.h"
#include "storage/base/status.h"

namespace holdfast::coord {

/// Files in PEM form; all three or none. Both sides prove who they are (mutual TLS).
struct TlsFiles {
  std::string ca;
  std::string cert;
  std::string key;
  bool configured() const { return !ca.empty() || !cert.empty() || !key.empty(); }
};

/// Control messages may have this many bytes: a node's whole inventory is one message.
inline constexpr int kControlMessageBytesMax = 64 << 20;
/// ReadShard sends 1 MiB chunks; anything much larger is refused.
inline constexpr int kDataMessageBytesMax = 4 << 20;

/// A channel that reconnects within a second of its server's return. Connects lazily: OK says
/// nothing about the server. Without TLS only local endpoints are accepted (InvalidArgument).
/// The channel is shared by gRPC's own stubs, hence shared_ptr.
Result<std::shared_ptr<grpc::Channel>> MakeChannel(const Endpoint& endpoint, const TlsFiles& tls,
                                                   int message_bytes_max = kControlMessageBytesMax);

/// Credentials to listen on `endpoint`; `key` names the configuration key in the refusal of a
/// non-local endpoint without TLS.
Result<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const Endpoint& endpoint,
                                                                       const TlsFiles& tls,
                                                                       std::string_view key);

/// Whether another process answers at `endpoint` now: gRPC itself would silently share or steal it.
/// Only meaningful for a unix socket or a port other than 0.
bool IsListening(const Endpoint& endpoint);

/// Builds and starts `service` on `endpoint`, refusing an address that is in use. `endpoint` gets
/// the port that was bound. `threads_max`: of a synchronous service; calls beyond them are refused
/// (ResourceExhausted); 0: as many as there are calls.
Result<std::unique_ptr<grpc::Server>> StartServer(grpc::Service& service, Endpoint& endpoint,
                                                  const TlsFiles& tls, std::string_view key,
                                                  int message_bytes_max = kControlMessageBytesMax,
                                                  int threads_max = 0);

}  // namespace holdfast::coord
