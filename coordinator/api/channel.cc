#include "coordinator/api/channel.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "base/certificates/certificate.h"
#include "base/fd.h"

namespace holdfast::coord {
namespace {
constexpr int kConnectMinMs = 5'000;
constexpr int kBackoffMinMs = 100;
constexpr int kBackoffMaxMs = 1000;
// After the sum of both without an answer, the client drops the connection and reconnects. TCP
// alone would retry at growing intervals.
constexpr int kKeepaliveMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
// The server rarely sends pings: a stopped agent would not answer them either, although its kernel
// acknowledges the packets. The timeout is also TCP_USER_TIMEOUT: a machine that acknowledges
// nothing for this long is off or disconnected, and its streams end.
constexpr int kServerKeepaliveMs = 3'600'000;
constexpr int kServerTimeoutMs = 1'500;
// A connection that completes no TLS handshake in this time ends. gRPC itself waits two minutes.
constexpr int kHandshakeMs = 10'000;

/// Used for channels and for servers, since each side must detect that the other one has failed.
template <typename SetInt>
void SetKeepalive(int time_ms, int timeout_ms, SetInt set) {
  set(GRPC_ARG_KEEPALIVE_TIME_MS, time_ms);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, timeout_ms);
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

Status RefuseInsecure(const Endpoint& endpoint, std::string_view what) {
  return InvalidArgumentError(fmt::format(
      "{} '{}' is reachable from other machines and no TLS is configured; set tls.ca, tls.cert and "
      "tls.key, or use a loopback address or unix:/path",
      what, endpoint.ToString()));
}

std::shared_ptr<grpc::Channel> Connect(const Endpoint& endpoint,
                                       const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                       int message_bytes_max) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kBackoffMinMs);
  // This is also the minimum time of a connection attempt: on an overloaded machine accept() is
  // slow.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMinMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kBackoffMaxMs);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  SetKeepalive(kKeepaliveMs, kKeepaliveTimeoutMs,
               [&](const char* name, int value) { arguments.SetInt(name, value); });
  // Otherwise the channels of one process would share one connection and one back-off.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(message_bytes_max);
  arguments.SetMaxSendMessageSize(message_bytes_max);
  return grpc::CreateCustomChannel(GrpcTarget(endpoint), credentials, arguments);
}
}  // namespace

std::string GrpcTarget(const Endpoint& endpoint) {
  if (endpoint.kind == Endpoint::Kind::kUnix) return endpoint.ToString();
  in_addr v4{};
  if (::inet_pton(AF_INET, endpoint.host.c_str(), &v4) == 1) return "ipv4:" + endpoint.ToString();
  in6_addr v6{};
  if (::inet_pton(AF_INET6, endpoint.host.c_str(), &v6) == 1) return "ipv6:" + endpoint.ToString();
  return "dns:///" + endpoint.ToString();
}

Status CheckPlain(const Endpoint& endpoint, const TlsFiles& tls, std::string_view key) {
  if (tls.configured() || endpoint.kind == Endpoint::Kind::kUnix) return Status::Ok();
  if (!endpoint.IsLocal()) return RefuseInsecure(endpoint, key);
  if (tls.insecure_loopback) return Status::Ok();
  return InvalidArgumentError(fmt::format(
      "{} '{}' is a loopback address without TLS, which every user of this machine can reach, and "
      "listen at while this process does not run; use unix:/path, for example under /run/holdfast, "
      "or set tls.ca, tls.cert and tls.key, or set insecure_loopback = true on a machine without "
      "other users",
      key, endpoint.ToString()));
}

Result<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(const Endpoint& endpoint,
                                                                         const TlsFiles& tls,
                                                                         ServerRole server) {
  if (tls.configured() && endpoint.kind != Endpoint::Kind::kUnix) {
    return MakeTlsChannelCredentials(tls, server);
  }
  if (endpoint.IsLocal()) return grpc::InsecureChannelCredentials();
  return Fail(RefuseInsecure(endpoint, "address"));
}

Result<std::shared_ptr<grpc::Channel>> MakeChannel(const Endpoint& endpoint, const TlsFiles& tls,
                                                   int message_bytes_max, ServerRole server) {
  HOLDFAST_ASSIGN_OR_RETURN(auto credentials, MakeChannelCredentials(endpoint, tls, server));
  return Connect(endpoint, credentials, message_bytes_max);
}

std::shared_ptr<grpc::Channel> MakePinnedChannel(const Endpoint& endpoint,
                                                 const std::string& ca_hash, const Clock& clock,
                                                 std::shared_ptr<Result<std::string>> why) {
  return Connect(endpoint,
                 MakePinnedChannelCredentials({ca_hash, endpoint.host}, clock, std::move(why)),
                 kControlMessageBytesMax);
}

Result<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const Endpoint& endpoint,
                                                                       const TlsFiles& tls,
                                                                       std::string_view key) {
  if (tls.configured()) return MakeTlsServerCredentials(tls);
  HOLDFAST_RETURN_IF_ERROR(CheckPlain(endpoint, tls, key));
  return grpc::InsecureServerCredentials();
}

bool IsListening(const Endpoint& endpoint) {
  if (endpoint.kind == Endpoint::Kind::kUnix) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (endpoint.path.size() > kUnixPathBytesMax) return false;
    std::memcpy(address.sun_path, endpoint.path.data(), endpoint.path.size());
    return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  if (endpoint.port == 0) return false;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(endpoint.port);
  if (::inet_pton(AF_INET, endpoint.host.c_str(), &v4.sin_addr) != 1) return false;
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  return ::bind(fd.get(), reinterpret_cast<sockaddr*>(&v4), sizeof(v4)) != 0 && errno == EADDRINUSE;
}

ApiServer::~ApiServer() {
  acceptor_.reset();  // before the server, which it uses
}

Status ApiServer::Listen(const std::string& path, UnixConnections& connections,
                         const Clock& clock) {
  auto acceptor = UnixAcceptor::Start(path, *server_, connections, {}, clock);
  if (!acceptor) return acceptor.error();
  acceptor_ = *std::move(acceptor);
  return Status::Ok();
}

Result<std::unique_ptr<ApiServer>> StartServer(const std::vector<GuardedService*>& services,
                                               Endpoint& endpoint, const TlsFiles& tls,
                                               std::string_view key, int message_bytes_max,
                                               int threads_max, InterceptorFactories interceptors) {
  HOLDFAST_ASSIGN_OR_RETURN(auto credentials, MakeServerCredentials(endpoint, tls, key));
  Status in_use = UnavailableError(fmt::format(
      "address {} is in use by another process; choose another with {}", endpoint.ToString(), key));
  if (IsListening(endpoint)) return Fail(in_use);
  int bound_port = 0;
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  SetKeepalive(kServerKeepaliveMs, kServerTimeoutMs,
               [&](const char* name, int value) { builder.AddChannelArgument(name, value); });
  // Must be shorter than the channels' ping interval, or gRPC treats their pings as an attack.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kKeepaliveMs / 2);
  if (threads_max > 0) {
    grpc::ResourceQuota quota("holdfast");
    quota.SetMaxThreads(threads_max);
    builder.SetResourceQuota(quota);
  }
  builder.SetMaxReceiveMessageSize(message_bytes_max);
  builder.SetMaxSendMessageSize(message_bytes_max);
  const bool unix_socket = endpoint.kind == Endpoint::Kind::kUnix;
  if (!unix_socket) builder.AddListeningPort(endpoint.ToString(), credentials, &bound_port);
  for (GuardedService* service : services) {
    builder.RegisterService(service);
    // Before the first call can arrive. The kernel identifies the callers of a unix socket.
    service->callers().ShareConnections(services.front()->callers());
    service->callers().Serve(endpoint, tls.configured() && !unix_socket);
  }
  if (!interceptors.empty()) {
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
  }
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || (!unix_socket && bound_port == 0)) {
    if (IsListening(endpoint)) return Fail(in_use);
    return Fail(UnavailableError(fmt::format(
        "cannot listen on {}: the address does not belong to this machine, is not permitted or is "
        "in use; choose another with {}",
        endpoint.ToString(), key)));
  }
  auto running = std::make_unique<ApiServer>(std::move(server));
  if (unix_socket) {
    const Status listens = running->Listen(endpoint.path, services.front()->callers().connections(),
                                           services.front()->clock());
    if (!listens.ok()) return Fail(listens.WithContext(key));
  } else {
    endpoint.port = static_cast<uint16_t>(bound_port);
    for (GuardedService* service : services) service->callers().Serve(endpoint, tls.configured());
  }
  return running;
}

}  // namespace holdfast::coord
