#include "coordinator/api/unix_acceptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/server_posix.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/endpoint.h"
#include "base/log.h"
#include "base/poll.h"

namespace holdfast::coord {
namespace {
constexpr mode_t kSocketMode = 0666;  // the user of a connection decides what it may do
constexpr int kBacklog = 4096;
constexpr int kAcceptsPerTurn = 128;
constexpr int kPollMs = 1000;
constexpr int kFailedMs = 20;
constexpr int kNumbersMax = 65'536;
constexpr int kFilesMax = 1 << 20;
constexpr int kFilesMin = 1 << 8;
constexpr size_t kPacesMax = 4096;
constexpr std::chrono::seconds kPaceTime(1);

/// Root and the user of the server: they have no separate limit.
bool IsTrusted(uid_t uid) { return uid == 0 || uid == ::geteuid(); }

Result<UniqueFd> Listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() > kUnixPathBytesMax) return Fail(InvalidArgumentError("too long: " + path));
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Fail(ErrnoStatus(errno, "socket"));
  struct stat file {};
  // The caller made sure that no process listens there.
  if (::lstat(path.c_str(), &file) == 0 && S_ISSOCK(file.st_mode)) ::unlink(path.c_str());
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return Fail(ErrnoStatus(errno, "bind " + path));
  }
  if (::chmod(path.c_str(), kSocketMode) != 0) return Fail(ErrnoStatus(errno, "chmod " + path));
  if (::listen(fd.get(), kBacklog) != 0) return Fail(ErrnoStatus(errno, "listen at " + path));
  return fd;
}

Result<UnixPeer> PeerOf(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return Fail(ErrnoStatus(errno, "SO_PEERCRED"));
  }
  return UnixPeer{peer.uid, peer.pid};
}

/// Raises the limit of open files to the highest permitted one. Returns a power of two up to the
/// limit. `fd` is any descriptor.
int RaiseFileLimit(int fd) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = std::max(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, kFilesMax));
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  // Filters of system calls may forbid both calls above, so the kernel is asked in another way.
  int files = kFilesMax;
  while (files > kFilesMin && !UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, files - 1)).valid()) {
    files /= 2;
  }
  return files;
}
}  // namespace

Result<std::unique_ptr<UnixAcceptor>> UnixAcceptor::Start(const std::string& path,
                                                          grpc::Server& server,
                                                          UnixConnections& connections,
                                                          UnixLimits limits, const Clock& clock) {
  std::unique_ptr<UnixAcceptor> acceptor(new UnixAcceptor(server, connections, limits, clock));
  acceptor->wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!acceptor->wake_.valid()) return Fail(ErrnoStatus(errno, "eventfd"));
  const int files = RaiseFileLimit(acceptor->wake_.get());
  acceptor->first_number_ = acceptor->next_number_ = std::min(files / 2, kNumbersMax);
  acceptor->end_number_ = std::min(files, acceptor->first_number_ + kNumbersMax);
  HOLDFAST_ASSIGN_OR_RETURN(acceptor->listener_, Listen(path));
  acceptor->path_ = path;
  acceptor->thread_ = Thread([raw = acceptor.get()] { raw->Run(); });
  return acceptor;
}

UnixAcceptor::~UnixAcceptor() {
  if (thread_.joinable()) {
    ::eventfd_write(wake_.get(), 1);
    WakePolls();
    thread_.join();
  }
  if (!path_.empty()) ::unlink(path_.c_str());
}

void UnixAcceptor::Run() {
  for (;;) {
    std::vector<pollfd> polled;
    polled.push_back({wake_.get(), POLLIN, 0});
    // A listener that cannot accept would stay readable.
    polled.push_back({accept_failed_ ? -1 : listener_.get(), POLLIN, 0});
    for (const Silent& silent : silent_) polled.push_back({silent.fd.get(), POLLIN, 0});
    for (const Served& served : served_) polled.push_back({served.watch.get(), 0, 0});
    Poll(polled, accept_failed_ ? kFailedMs : kPollMs);
    accept_failed_ = false;
    if (polled[0].revents != 0) return;
    const Clock::TimePoint now = clock_.Now();
    std::vector<Silent> waiting;
    std::vector<Silent> ready;
    for (size_t i = 0; i < silent_.size(); ++i) {
      const bool spoke = polled[2 + i].revents != 0;
      if (!spoke && now >= silent_[i].until) continue;  // closes the connection
      (spoke ? ready : waiting).push_back(std::move(silent_[i]));
    }
    std::vector<Served> served;
    for (size_t i = 0; i < served_.size(); ++i) {
      const short ended = polled[2 + silent_.size() + i].revents;
      if (ended == 0) {
        served.push_back(std::move(served_[i]));
      } else {
        connections_.Remove(served_[i].number);
      }
    }
    silent_ = std::move(waiting);
    served_ = std::move(served);
    for (Silent& one : ready) Serve(std::move(one));
    if (polled[1].revents != 0) Accept();
  }
}

void UnixAcceptor::Accept() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN) {
        Log(LogLevel::kWarn, "AcceptFailed", {Kv("error", ErrnoStatus(errno, "accept").message())});
        accept_failed_ = true;
      }
      return;
    }
    auto peer = PeerOf(fd.get());
    if (!peer || !Admits(*peer)) continue;  // closes the connection
    silent_.push_back({std::move(fd), *peer, clock_.Now() + limits_.silent_for});
  }
}

/// Checks the limits of a new connection. Closes the oldest silent connection of its user if the
/// user has too many of these.
bool UnixAcceptor::Admits(const UnixPeer& peer) {
  const bool trusted = IsTrusted(peer.uid);
  const size_t all = served_.size() + silent_.size();
  if (all >= limits_.connections - (trusted ? 0 : limits_.reserved)) return false;
  if (trusted) return true;
  if (paces_.size() >= kPacesMax) paces_.clear();
  Pace& pace = paces_[peer.uid];
  const Clock::TimePoint now = clock_.Now();
  if (now - pace.since >= kPaceTime) pace = {now, 0};
  if (++pace.begun > limits_.new_per_second) return false;
  const auto mine = [&](const auto& served) { return served.uid == peer.uid; };
  if (static_cast<size_t>(std::ranges::count_if(served_, mine)) >= limits_.per_user) {
    Log(LogLevel::kDebug, "ConnectionRefused",
        {Kv("uid", peer.uid), Kv("pid", peer.pid), Kv("connections", limits_.per_user)});
    return false;
  }
  const auto silent = [&](const Silent& one) { return one.peer.uid == peer.uid; };
  if (static_cast<size_t>(std::ranges::count_if(silent_, silent)) >= limits_.silent) {
    silent_.erase(std::ranges::find_if(silent_, silent));  // they are in the order of arrival
  }
  return true;
}

UniqueFd UnixAcceptor::AtFreshNumber(int fd) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, next_number_));
    if (copy.valid() && copy.get() < end_number_) {
      next_number_ = copy.get() + 1;
      return copy;
    }
    next_number_ = first_number_;
  }
  return {};
}

void UnixAcceptor::Serve(Silent silent) {
  UniqueFd served = AtFreshNumber(silent.fd.get());
  if (!served.valid()) return;
  const int number = served.Release();
  connections_.Add(number, silent.peer);
  served_.push_back({std::move(silent.fd), number, silent.peer.uid});
  grpc::AddInsecureChannelFromFd(&server_, number);
}

}  // namespace holdfast::coord
