#include "agent/peers/tcp_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "agent/peers/handshake.h"
#include "agent/peers/secret.h"
#include "base/ids.h"
#include "base/log.h"

namespace holdfast::agent {
namespace {

// While a session waits for its source no thread reads from the client, so the accept thread checks
// at this interval whether clients have disconnected.
constexpr int kTickMs = 200;
// A rejected peer retries repeatedly. The log gets at most one line per interval, with the number
// of rejections since the line before.
constexpr auto kLogInterval = std::chrono::seconds(1);

std::string NameOf(const sockaddr_storage& from) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (from.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&from);
    ::inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
    return fmt::format("{}:{}", text.data(), ntohs(v4->sin_port));
  }
  if (from.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&from);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
    return fmt::format("[{}]:{}", text.data(), ntohs(v6->sin6_port));
  }
  return "a local peer";
}

/// Whether the process at the other end of a unix socket belongs to root or to this agent's user.
bool IsAgentsUser(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == 0 || peer.uid == ::geteuid());
}

/// Returns whether operators should see this end of a connection: a missing permission or a defect.
bool IsSuspicious(const Status& why) {
  return why.code() == ErrorCode::kPermissionDenied ||
         why.code() == ErrorCode::kFailedPrecondition || why.code() == ErrorCode::kDataLoss ||
         why.code() == ErrorCode::kUnsupported || why.code() == ErrorCode::kInvalidArgument;
}

}  // namespace

/// A served connection and its thread, which sets `finished` at its end.
struct TcpPeerServer::Connection {
  Connection(UniqueFd socket, std::string peer, PeerServerContext& context)
      : session(std::move(socket), std::move(peer), context) {}
  PeerSession session;
  std::atomic<bool> finished{false};
  std::thread thread;
};

Result<std::unique_ptr<TcpPeerServer>> TcpPeerServer::Start(const TcpPeerServerOptions& options,
                                                            PeerSource& source,
                                                            const Clock& clock) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("cluster", options.cluster));
  HOLDFAST_RETURN_IF_ERROR(ValidateName("node", options.node));
  auto address = ParseEndpoint(options.listen);
  if (!address) return Fail(address.error().WithContext("peers.listen"));
  PeerIdentity self{options.cluster, options.node, ""};
  if (!options.secret_file.empty()) {
    HOLDFAST_ASSIGN_OR_RETURN(self.secret, ReadPeerSecret(options.secret_file));
  }
  HOLDFAST_RETURN_IF_ERROR(RequireTls(*address, options.tls.configured(), "peers.listen"));
  std::unique_ptr<TlsContexts> tls;
  if (options.tls.configured()) {
    HOLDFAST_ASSIGN_OR_RETURN(
        tls, TlsContexts::Load(options.tls, TlsContext::Role::kServer, options.encrypt));
  }
  auto listener = ListenAt(*address, clock);
  if (!listener) return Fail(listener.error().WithContext("peers.listen"));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return Fail(ErrnoStatus(errno, "eventfd"));
  std::unique_ptr<TcpPeerServer> server(new TcpPeerServer(options, std::move(self), std::move(tls),
                                                          *std::move(address), *std::move(listener),
                                                          std::move(wake), source, clock));
  server->accept_thread_ = std::thread([raw = server.get()] { raw->AcceptLoop(); });
  return server;
}

TcpPeerServer::TcpPeerServer(const TcpPeerServerOptions& options, PeerIdentity self,
                             std::unique_ptr<TlsContexts> tls, Endpoint address, UniqueFd listener,
                             UniqueFd wake, PeerSource& source, const Clock& clock)
    : context_{std::move(self),
               std::move(tls),
               options.revoked,
               options.timeouts,
               source,
               clock,
               PaceGate(options.pace, options.is_busy, clock),
               {}},
      connections_max_(options.connections_max),
      address_(std::move(address)),
      address_text_(address_.ToString()),
      listener_(std::move(listener)),
      wake_(std::move(wake)) {}

TcpPeerServer::~TcpPeerServer() { Stop(); }

void TcpPeerServer::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full; then the descriptor is readable anyway.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

void TcpPeerServer::Stop() {
  if (!accept_thread_.joinable()) return;
  stopping_ = true;
  Wake();
  accept_thread_.join();
  // This server still listens, so the file belongs to it.
  if (address_.kind == Endpoint::Kind::kUnix) ::unlink(address_.path.c_str());
  listener_.Reset();
  context_.gate.Stop();
  for (Connection& connection : connections_) connection.session.Stop();
  for (Connection& connection : connections_) connection.thread.join();
  connections_.clear();
}

void TcpPeerServer::AcceptLoop() {
  while (!stopping_) {
    std::array<pollfd, 2> waiting = {pollfd{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                     pollfd{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    // When the process has no descriptors left, the listener stays readable: skip it for one tick.
    const nfds_t count = accept_failed_ ? 1 : 2;
    const bool ticks = accept_failed_ || !connections_.empty();
    ::poll(waiting.data(), count, ticks ? kTickMs : -1);
    accept_failed_ = false;
    uint64_t drained = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &drained, sizeof(drained));
    Reap();
    for (Connection& connection : connections_) {
      connection.session.CancelIfDisconnected();
      connection.session.StopIfRevoked();
    }
    if ((waiting[1].revents & POLLIN) != 0) AcceptAll();
  }
}

void TcpPeerServer::Reap() {
  for (auto it = connections_.begin(); it != connections_.end();) {
    if (it->finished) {
      it->thread.join();
      it = connections_.erase(it);
    } else {
      ++it;
    }
  }
}

void TcpPeerServer::AcceptAll() {
  while (!stopping_) {
    sockaddr_storage from{};
    socklen_t bytes = sizeof(from);
    UniqueFd socket(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &bytes,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      accept_failed_ = true;
      Log(LogLevel::kWarn, "PeerNotAccepted",
          {Kv("error", ErrnoStatus(errno, "accept").ToString())});
      return;
    }
    // With a secret, the handshake decides.
    if (address_.kind == Endpoint::Kind::kUnix && context_.self.secret.empty() &&
        !IsAgentsUser(socket.get())) {
      ++context_.counters.rejected;
      LogRejected(NameOf(from), PermissionDeniedError("the process belongs to another user"));
      continue;
    }
    DisableDelay(socket.get());
    Reap();
    EndStrangers();
    const auto known =
        static_cast<size_t>(std::ranges::count_if(connections_, [](const Connection& connection) {
          return connection.session.authenticated();
        }));
    if (known < connections_max_) {
      ++context_.counters.connections;
      Serve(std::move(socket), NameOf(from));
      continue;
    }
    ++context_.counters.refused;
    EndIdle();
    // Sent in plain text even where TLS is used. The socket's buffer is empty, so this does not
    // block.
    Channel refused(std::move(socket), NameOf(from), context_.clock);
    SendRefusal(refused, ResourceExhaustedError(fmt::format(
                             "node {} serves {} peer connections already (peers.connections_max)",
                             context_.self.node, connections_max_)));
  }
}

void TcpPeerServer::EndStrangers() {
  size_t strangers = 0;
  for (Connection& connection : connections_) {
    if (!connection.session.authenticated() && !connection.finished) ++strangers;
  }
  for (auto it = connections_.begin(); strangers >= kStrangersMax && it != connections_.end();) {
    const auto oldest = it++;
    if (oldest->session.authenticated() || oldest->finished) continue;
    oldest->session.Stop();
    // Its thread ends at once, since nothing but the socket can block it.
    oldest->thread.join();
    connections_.erase(oldest);
    ++context_.counters.refused;
    --strangers;
  }
}

/// Clients keep idle connections for later requests, and open others when they find them closed.
void TcpPeerServer::EndIdle() {
  for (Connection& connection : connections_) {
    if (!connection.session.idle()) continue;
    connection.session.Stop();
    return;
  }
}

void TcpPeerServer::Serve(UniqueFd socket, std::string peer) {
  Connection& connection = connections_.emplace_back(std::move(socket), std::move(peer), context_);
  connection.thread = std::thread([this, &connection] {
    const Status why = connection.session.Run();
    if (IsSuspicious(why)) LogRejected(connection.session.peer(), why);
    connection.finished = true;
    Wake();
  });
}

void TcpPeerServer::LogRejected(const std::string& peer, const Status& why) {
  MutexLock lock(log_mutex_);
  const Clock::TimePoint now = context_.clock.Now();
  if (now - logged_ < kLogInterval) {
    ++not_logged_;
    return;
  }
  Log(LogLevel::kWarn, "PeerRejected",
      {Kv("peer", peer), Kv("error", why.ToString()), Kv("more_before", not_logged_)});
  logged_ = now;
  not_logged_ = 0;
}

}  // namespace holdfast::agent
