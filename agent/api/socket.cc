#include "agent/api/socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/poll.h"
#include "base/process.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace holdfast::agent {
namespace {
constexpr int kBacklog = 4096;
constexpr size_t kFdsMax = 4;
constexpr auto kDirectoryLockWait = std::chrono::seconds(5);

struct Address {
  sockaddr_un value{};
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

Result<Address> AddressOf(const std::string& path) {
  Address address;
  constexpr size_t kPathMax = sizeof(address.value.sun_path) - 1;
  if (path.empty() || path.find('\0') != std::string::npos) {
    return Fail(InvalidArgumentError("a socket's path must not be empty or contain a NUL byte"));
  }
  if (path.size() > kPathMax) {
    return Fail(InvalidArgumentError(
        fmt::format("the socket path {} has {} bytes; the kernel allows {}: choose a shorter "
                    "run_dir",
                    path, path.size(), kPathMax)));
  }
  address.value.sun_family = AF_UNIX;
  std::memcpy(address.value.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Result<UniqueFd> NewSocket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Fail(ErrnoStatus(errno, "socket(AF_UNIX, SOCK_SEQPACKET)"));
  return fd;
}

std::string DirectoryOf(const std::string& path) {
  size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Serializes listeners that replace a stale socket in one directory. Otherwise two could both find
// the socket stale, and the second would remove the first one's new socket.
Result<UniqueFd> LockDirectory(const std::string& directory, Clock& clock) {
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return Fail(NotFoundError(fmt::format(
          "the directory {} for a socket does not exist: create it or change run_dir", directory)));
    }
    return Fail(ErrnoStatus(errno, "open " + directory));
  }
  const auto deadline = clock.Now() + kDirectoryLockWait;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return Fail(ErrnoStatus(errno, "flock " + directory));
    if (clock.Now() >= deadline) {
      return Fail(UnavailableError(
          fmt::format("another process holds a lock on {}: see /proc/locks", directory)));
    }
    clock.SleepFor(std::chrono::milliseconds(5));
  }
  return fd;
}

/// Removes a stale socket at `path`, so that a new listener can bind there.
Status RemoveStale(const std::string& path, const Address& address) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? Status::Ok() : ErrnoStatus(errno, "stat " + path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return AlreadyExistsError(
        fmt::format("{} exists and is not a socket: remove it or change run_dir", path));
  }
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd probe, NewSocket());
  int error = ::connect(probe.get(), address.get(), sizeof(address.value)) == 0 ? 0 : errno;
  if (error == ECONNREFUSED) {
    if (::unlink(path.c_str()) == 0 || errno == ENOENT) return Status::Ok();
    return ErrnoStatus(errno, "remove the stale socket " + path);
  }
  // EAGAIN: the listener's backlog is full. EPROTOTYPE: a listener of another socket type.
  if (error == 0 || error == EAGAIN || error == EPROTOTYPE) {
    return AlreadyExistsError(fmt::format(
        "another process listens on {}: stop it, or give this one another run_dir", path));
  }
  return ErrnoStatus(error, "check whether a process listens on " + path);
}

Status SetBlocking(int fd) {
  int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "fcntl(F_SETFL)");
  }
  return Status::Ok();
}

Status ConnectError(int error, const std::string& path) {
  if (error == ENOENT || error == ENOTDIR) {
    return NotFoundError(fmt::format(
        "there is no socket {}: is the agent running on this node, with this run_dir?", path));
  }
  if (error == EACCES || error == EPERM) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) {
      return PermissionDeniedError(
          fmt::format("user {} may not reach the socket {}: a directory above it denies access",
                      ::geteuid(), path));
    }
    return PermissionDeniedError(
        fmt::format("user {} may not connect to {}: it belongs to user {}, group {}, mode {:04o}",
                    ::geteuid(), path, info.st_uid, info.st_gid, info.st_mode & 07777U));
  }
  if (error == ECONNREFUSED) {
    return UnavailableError(
        fmt::format("no process listens on {}: the agent is not running", path));
  }
  if (error == EAGAIN) {
    return UnavailableError(
        fmt::format("the listener on {} accepts no connection: its queue of waiting "
                    "connections is full",
                    path));
  }
  if (error == EPROTOTYPE) {
    return InvalidArgumentError(fmt::format("{} is a socket of another type", path));
  }
  return ErrnoStatus(error, "connect to " + path);
}

/// Milliseconds for poll() until `deadline`, rounded up.
int PollTimeout(Clock::TimePoint deadline, const Clock& clock) {
  auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock.Now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

std::vector<UniqueFd> TakeDescriptors(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}
}  // namespace

Result<UniqueFd> ListenUnix(const std::string& path, mode_t mode, Clock& clock) {
  HOLDFAST_ASSIGN_OR_RETURN(Address address, AddressOf(path));
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd lock, LockDirectory(DirectoryOf(path), clock));
  HOLDFAST_RETURN_IF_ERROR(RemoveStale(path, address));
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  // The file gets the socket's mode less the umask, so its mode is never wider than requested, not
  // even for an instant. The chmod below then adds the bits that the umask took.
  if (::fchmod(fd.get(), mode) != 0) return Fail(ErrnoStatus(errno, "fchmod of a socket"));
  if (::bind(fd.get(), address.get(), sizeof(address.value)) != 0) {
    if (errno == EACCES || errno == EPERM || errno == EROFS) {
      return Fail(PermissionDeniedError(
          fmt::format("user {} may not create the socket {}: make {} writable for it", ::geteuid(),
                      path, DirectoryOf(path))));
    }
    return Fail(ErrnoStatus(errno, "bind " + path));
  }
  if (::chmod(path.c_str(), mode) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    Status status = ErrnoStatus(errno, "listen on " + path);
    ::unlink(path.c_str());
    return Fail(std::move(status));
  }
  return fd;
}

Result<UniqueFd> ConnectUnix(const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(Address address, AddressOf(path));
  // Non-blocking while connecting: a stopped listener with a full backlog must not hang the caller.
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  while (::connect(fd.get(), address.get(), sizeof(address.value)) != 0) {
    if (errno != EINTR) return Fail(ConnectError(errno, path));
  }
  HOLDFAST_RETURN_IF_ERROR(SetBlocking(fd.get()));
  return fd;
}

Result<std::optional<UniqueFd>> AcceptUnix(int listener) {
  for (;;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) return std::optional<UniqueFd>(std::move(fd));
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::optional<UniqueFd>();
    if (errno != EINTR && errno != ECONNABORTED) return Fail(ErrnoStatus(errno, "accept"));
  }
}

Result<PeerCredentials> CredentialsOf(int socket) {
  ucred value{};
  socklen_t bytes = sizeof(value);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &value, &bytes) != 0) {
    return Fail(ErrnoStatus(errno, "getsockopt(SO_PEERCRED)"));
  }
  return PeerCredentials{.pid = value.pid, .uid = value.uid, .gid = value.gid};
}

Result<UniqueFd> PidFdOfPeer(int socket) {
  int value = -1;
  socklen_t bytes = sizeof(value);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &value, &bytes) == 0) return UniqueFd(value);
  if (errno == ESRCH || errno == EINVAL) {
    return Fail(NotFoundError("the peer's process has exited"));
  }
  if (errno != ENOPROTOOPT) return Fail(ErrnoStatus(errno, "getsockopt(SO_PEERPIDFD)"));
  HOLDFAST_ASSIGN_OR_RETURN(PeerCredentials peer, CredentialsOf(socket));
  return PidFdOf(peer.pid);
}

Status SendPacket(int socket, std::span<const std::byte> packet, std::span<const int> fds) {
  if (packet.empty()) {
    return InvalidArgumentError(
        "a packet must not be empty: the receiver would take it for the end of the connection");
  }
  if (fds.size() > kFdsMax) {
    return InvalidArgumentError(
        fmt::format("{} descriptors in one packet; the limit is {}", fds.size(), kFdsMax));
  }
  iovec data{.iov_base = const_cast<std::byte*>(packet.data()), .iov_len = packet.size()};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kFdsMax * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(part), fds.data(), fds.size_bytes());
  }
  // MSG_NOSIGNAL: a closed connection must be an error here, not a SIGPIPE.
  while (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) {
      return UnavailableError("the other side closed the connection");
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS) {
      return ResourceExhaustedError(
          "the other side does not read its packets: the socket's buffer is full");
    }
    if (errno == EMSGSIZE) {
      return InvalidArgumentError(
          fmt::format("a packet of {} bytes exceeds the socket's limit", packet.size()));
    }
    return ErrnoStatus(errno, "sendmsg");
  }
  WakePolls();
  return Status::Ok();
}

namespace {
/// Receives one packet without waiting; DeadlineExceeded: none is there. Packets that arrived
/// before a reset, such as a refusal, can still be read after it: `reset` is then set, and the
/// caller tries once more.
Result<ReceivedPacket> TryReceive(int socket, size_t bytes_max, bool* reset) {
  ReceivedPacket packet;
  packet.bytes.resize(bytes_max);
  iovec data{.iov_base = packet.bytes.data(), .iov_len = packet.bytes.size()};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kFdsMax * sizeof(int))] = {};
  for (;;) {
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    ssize_t bytes = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return Fail(DeadlineExceededError("no packet is waiting"));
    }
    if (bytes < 0 && errno == ECONNRESET && !*reset) {
      *reset = true;
      continue;
    }
    if (*reset && (bytes == 0 || (bytes < 0 && errno == ECONNRESET))) {
      return Fail(UnavailableError("the other side closed the connection"));
    }
    if (bytes < 0) return Fail(ErrnoStatus(errno, "recvmsg"));
    packet.fds = TakeDescriptors(message);
    if ((message.msg_flags & MSG_TRUNC) != 0) {
      return Fail(InvalidArgumentError(
          fmt::format("a packet is longer than the limit of {} bytes", bytes_max)));
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      return Fail(InvalidArgumentError(
          fmt::format("a packet's descriptors were truncated: there were more than {}, or this "
                      "process has too many files open",
                      kFdsMax)));
    }
    packet.bytes.resize(static_cast<size_t>(bytes));
    return packet;
  }
}
}  // namespace

Result<ReceivedPacket> ReceivePacket(int socket, size_t bytes_max) {
  bool reset = false;
  return TryReceive(socket, bytes_max, &reset);
}

Result<ReceivedPacket> AwaitPacket(int socket, size_t bytes_max, int timeout_ms, Clock& clock) {
  const auto deadline = clock.Now() + std::chrono::milliseconds(std::max(timeout_ms, 0));
  bool reset = false;
  for (;;) {
    pollfd waiting{.fd = socket, .events = POLLIN, .revents = 0};
    const int ready = Poll({&waiting, 1}, timeout_ms < 0 ? -1 : PollTimeout(deadline, clock));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return Fail(ErrnoStatus(errno, "poll"));
    if (ready == 0) {
      return Fail(DeadlineExceededError(fmt::format("no packet within {} ms", timeout_ms)));
    }
    auto packet = TryReceive(socket, bytes_max, &reset);
    if (packet || packet.error().code() != ErrorCode::kDeadlineExceeded) return packet;
  }
}

}  // namespace holdfast::agent
