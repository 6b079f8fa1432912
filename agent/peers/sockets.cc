#include "agent/peers/sockets.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include "base/mutex.h"

namespace holdfast::agent {
namespace {

constexpr int kBacklog = 128;
constexpr mode_t kSocketFileMode = 0600;
// Limit of pending name lookups. When it is reached, the resolver is assumed to hang.
constexpr int kLookupsMax = 16;

/// A socket address of any family.
struct SocketAddress {
  sockaddr_storage value{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
  int family() const { return value.ss_family; }
};

SocketAddress UnixAddress(const std::string& path) {
  SocketAddress address;
  auto* where = reinterpret_cast<sockaddr_un*>(&address.value);
  where->sun_family = AF_UNIX;
  std::memcpy(where->sun_path, path.data(), path.size());
  address.bytes = sizeof(sockaddr_un);
  return address;
}

std::optional<SocketAddress> NumericAddress(const std::string& host, uint16_t port) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.value);
  if (::inet_pton(AF_INET, host == "localhost" ? "127.0.0.1" : host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.bytes = sizeof(sockaddr_in);
    return address;
  }
  address = {};
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.value);
  if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.bytes = sizeof(sockaddr_in6);
    return address;
  }
  return std::nullopt;
}

/// State shared by a lookup and the thread that waits for it.
struct Lookup {
  Mutex mutex;
  CondVar changed;
  bool done HOLDFAST_GUARDED_BY(mutex) = false;
  int error HOLDFAST_GUARDED_BY(mutex) = 0;
  SocketAddress found HOLDFAST_GUARDED_BY(mutex);
};

void RunLookup(const std::string& host, uint16_t port, Lookup& lookup) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  MutexLock lock(lookup.mutex);
  lookup.error = error;
  if (error == 0) {
    std::memcpy(&lookup.found.value, list->ai_addr, list->ai_addrlen);
    lookup.found.bytes = list->ai_addrlen;
    ::freeaddrinfo(list);
  }
  lookup.done = true;
  lookup.changed.NotifyAll();
}

/// Resolves a host name. getaddrinfo() has no deadline, so it runs in a detached thread. That
/// thread may outlive this call, so the two share the ownership of the lookup's state.
Result<SocketAddress> ResolveName(const std::string& host, uint16_t port,
                                  Clock::TimePoint deadline) {
  static std::atomic<int> running{0};
  if (running.fetch_add(1) >= kLookupsMax) {
    --running;
    return Fail(UnavailableError(fmt::format(
        "cannot look up {}: {} name lookups are pending, the resolver hangs", host, kLookupsMax)));
  }
  auto lookup = std::make_shared<Lookup>();
  std::thread([host, port, lookup] {
    RunLookup(host, port, *lookup);
    --running;
  }).detach();
  MutexLock lock(lookup->mutex);
  while (!lookup->done) {
    if (lookup->changed.WaitUntil(lookup->mutex, deadline) || lookup->done) continue;
    return Fail(DeadlineExceededError("the name lookup of " + host + " timed out"));
  }
  if (lookup->error != 0) {
    return Fail(UnavailableError(
        fmt::format("cannot look up {}: {}", host, ::gai_strerror(lookup->error))));
  }
  return lookup->found;
}

Result<SocketAddress> Resolve(const Endpoint& address, Clock::TimePoint deadline) {
  if (address.kind == Endpoint::Kind::kUnix) return UnixAddress(address.path);
  if (auto numeric = NumericAddress(address.host, address.port)) return *numeric;
  return ResolveName(address.host, address.port, deadline);
}

Result<UniqueFd> NewSocket(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Fail(ErrnoStatus(errno, "socket"));
  return fd;
}

/// Removes a stale socket at `path`, so that a new listener can bind there. The lock of the run
/// directory prevents two agents from doing this concurrently.
Status RemoveStaleSocket(const std::string& path, const SocketAddress& where) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? Status::Ok() : ErrnoStatus(errno, "stat " + path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return AlreadyExistsError(path + " exists and is not a socket: remove it or choose another");
  }
  HOLDFAST_ASSIGN_OR_RETURN(const UniqueFd probe, NewSocket(AF_UNIX));
  if (::connect(probe.get(), where.get(), where.bytes) == 0 || errno != ECONNREFUSED) {
    return AlreadyExistsError("another process listens on " + path);
  }
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return Status::Ok();
  return ErrnoStatus(errno, "remove the stale socket " + path);
}

Status ReadBoundPort(int socket, Endpoint& address) {
  SocketAddress bound;
  bound.bytes = sizeof(bound.value);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&bound.value), &bound.bytes) != 0) {
    return ErrnoStatus(errno, "getsockname");
  }
  address.port = ntohs(bound.family() == AF_INET6
                           ? reinterpret_cast<const sockaddr_in6*>(&bound.value)->sin6_port
                           : reinterpret_cast<const sockaddr_in*>(&bound.value)->sin_port);
  return Status::Ok();
}

Status ConnectError(int error, const Endpoint& address) {
  const std::string text =
      fmt::format("no connection to {}: {}", address.ToString(), std::strerror(error));
  // Errors that may disappear when the node restarts, becomes reachable or is less busy.
  for (int transient : {ECONNREFUSED, ENOENT, ENOTDIR, EAGAIN, ECONNRESET, EHOSTUNREACH,
                        ENETUNREACH, ENETDOWN, EHOSTDOWN, ETIMEDOUT, EADDRNOTAVAIL}) {
    if (error == transient) return UnavailableError(text);
  }
  return ErrnoStatus(error, "connect to " + address.ToString());
}

}  // namespace

Result<UniqueFd> ListenAt(Endpoint& address, const Clock& clock) {
  // A program listens when it starts, and may wait for a slow resolver then.
  const auto deadline = clock.Now() + std::chrono::seconds(30);
  HOLDFAST_ASSIGN_OR_RETURN(const SocketAddress where, Resolve(address, deadline));
  const bool is_unix = address.kind == Endpoint::Kind::kUnix;
  if (is_unix) HOLDFAST_RETURN_IF_ERROR(RemoveStaleSocket(address.path, where));
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(where.family()));
  const int on = 1;
  if (!is_unix) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // The file gets the socket's mode, so its mode is never wider, not even for an instant.
  if (is_unix && ::fchmod(fd.get(), kSocketFileMode) != 0) {
    return Fail(ErrnoStatus(errno, "fchmod of a socket"));
  }
  if (::bind(fd.get(), where.get(), where.bytes) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    if (errno == EADDRINUSE) {
      return Fail(AlreadyExistsError(
          fmt::format("address {} is in use by another process", address.ToString())));
    }
    return Fail(ErrnoStatus(errno, "listen on " + address.ToString()));
  }
  if (!is_unix) HOLDFAST_RETURN_IF_ERROR(ReadBoundPort(fd.get(), address));
  return fd;
}

Result<UniqueFd> ConnectTo(const Endpoint& address, Clock::TimePoint deadline, const Clock& clock) {
  HOLDFAST_ASSIGN_OR_RETURN(const SocketAddress where, Resolve(address, deadline));
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(where.family()));
  int error = ::connect(fd.get(), where.get(), where.bytes) == 0 ? 0 : errno;
  if (error == EINPROGRESS || error == EINTR) {
    pollfd waiting{.fd = fd.get(), .events = POLLOUT, .revents = 0};
    int ready = 0;
    do {
      ready = ::poll(&waiting, 1, PollMsUntil(deadline, clock));
    } while (ready < 0 && errno == EINTR);
    if (ready == 0) {
      return Fail(DeadlineExceededError("connecting to " + address.ToString() + " timed out"));
    }
    socklen_t bytes = sizeof(error);
    if (ready < 0 || ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) {
      error = errno;
    }
  }
  if (error != 0) return Fail(ConnectError(error, address));
  DisableDelay(fd.get());
  return fd;
}

void DisableDelay(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

bool IsRetry(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

int PollMsUntil(Clock::TimePoint deadline, const Clock& clock) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock.Now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

}  // namespace holdfast::agent
