#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "base/status.h"
#include "coordinator/api/access_guard.h"
#include "coordinator/api/tls_credentials.h"
#include "coordinator/api/unix_acceptor.h"

namespace holdfast::coord {

/// Largest control message in bytes. A node's complete inventory is one message.
inline constexpr int kControlMessageBytesMax = 64 << 20;
/// Largest data message in bytes. ReadShard sends chunks of 1 MiB.
inline constexpr int kDataMessageBytesMax = 4 << 20;

/// Returns the form of an endpoint that gRPC clients dial. gRPC servers bind Endpoint::ToString().
std::string GrpcTarget(const Endpoint& endpoint);

/// Returns the credentials to connect to `endpoint`; a unix socket never has TLS. InvalidArgument:
/// the endpoint is not local and `tls` is not configured.
Result<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const Endpoint& endpoint, const TlsFiles& tls, ServerRole server = ServerRole::kAny);

/// Makes a channel that reconnects within a second after its server is reachable again. The channel
/// connects lazily: OK does not mean that the server is reachable. InvalidArgument: the endpoint is
/// not local and `tls` is not configured. A shared_ptr, since gRPC's stubs share the channel.
Result<std::shared_ptr<grpc::Channel>> MakeChannel(const Endpoint& endpoint, const TlsFiles& tls,
                                                   int message_bytes_max = kControlMessageBytesMax,
                                                   ServerRole server = ServerRole::kAny);

/// Makes a channel to a server that only the hash of its authority identifies; see
/// MakePinnedChannelCredentials().
std::shared_ptr<grpc::Channel> MakePinnedChannel(const Endpoint& endpoint,
                                                 const std::string& ca_hash, const Clock& clock,
                                                 std::shared_ptr<Result<std::string>> why);

/// Returns OK if `endpoint` may be used as `tls` configures: with TLS, as a unix socket, or, with
/// `insecure_loopback`, as a loopback address. InvalidArgument: the message names the key `key`.
Status CheckPlain(const Endpoint& endpoint, const TlsFiles& tls, std::string_view key);

/// Returns the credentials to listen on `endpoint`. InvalidArgument: `tls` is not configured, and
/// the endpoint is neither a unix socket nor, with `insecure_loopback`, a loopback address; the
/// message names the configuration key `key`.
Result<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const Endpoint& endpoint,
                                                                       const TlsFiles& tls,
                                                                       std::string_view key);

/// Returns whether another process listens at `endpoint` now. gRPC itself would silently share or
/// take over the address. Meaningful only for a unix socket or a port other than 0.
bool IsListening(const Endpoint& endpoint);

/// gRPC's factories of interceptors, which see every call of a server.
using InterceptorFactories =
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>;

/// A running gRPC server, and the acceptor of its unix socket. The destructor stops both at once.
class ApiServer {
 public:
  explicit ApiServer(std::unique_ptr<grpc::Server> server) : server_(std::move(server)) {}
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  /// Accepts the connections to a unix socket. Once. `clock` outlives the server.
  Status Listen(const std::string& path, UnixConnections& connections, const Clock& clock);
  /// Accepts no more connections, and ends the calls that are in progress at the deadline.
  template <typename Deadline>
  void Shutdown(const Deadline& deadline) {
    acceptor_.reset();
    server_->Shutdown(deadline);
  }
  /// Returns once all calls have ended after a Shutdown().
  void Wait() { server_->Wait(); }

 private:
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<UnixAcceptor> acceptor_;  // of a unix socket
};

/// Starts a server with `services`, which outlive the server, on `endpoint`. Every user can connect
/// to a unix socket; the kernel reports the user of each connection. Unavailable if the address is
/// in use. Sets the port of `endpoint` to the one that was bound. `threads_max` limits the threads
/// of a synchronous service: calls beyond the limit fail with ResourceExhausted; 0: no limit.
Result<std::unique_ptr<ApiServer>> StartServer(const std::vector<GuardedService*>& services,
                                               Endpoint& endpoint, const TlsFiles& tls,
                                               std::string_view key,
                                               int message_bytes_max = kControlMessageBytesMax,
                                               int threads_max = 0,
                                               InterceptorFactories interceptors = {});
/// The same, with one service.
inline Result<std::unique_ptr<ApiServer>> StartServer(
    GuardedService& service, Endpoint& endpoint, const TlsFiles& tls, std::string_view key,
    int message_bytes_max = kControlMessageBytesMax, int threads_max = 0,
    InterceptorFactories interceptors = {}) {
  return StartServer(std::vector<GuardedService*>{&service}, endpoint, tls, key, message_bytes_max,
                     threads_max, std::move(interceptors));
}

}  // namespace holdfast::coord
