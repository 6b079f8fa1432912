#include "tests/simulation/sim_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/poll.h"

namespace holdfast::simulation {
pid_t SimProcesses::Start() {
  const pid_t pid = next_++;
  ends_[pid] = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return pid;
}

void SimProcesses::End(pid_t pid) {
  const uint64_t one = 1;
  if (::write(ends_.at(pid).get(), &one, sizeof(one)) != sizeof(one)) std::abort();
  WakePolls();
}

Result<UniqueFd> SimProcesses::Connect(pid_t pid, const std::string& path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un self{};
  self.sun_family = AF_UNIX;
  const std::string name =
      fmt::format("holdfast-simulation/{}/{}/{}", ::getpid(), pid, ++connections_);
  std::memcpy(self.sun_path + 1, name.data(), name.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&self), bytes) != 0) {
    return Fail(ErrnoStatus(errno, "bind"));
  }
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path.c_str(), path.size() + 1);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) {
    return Fail(ErrnoStatus(errno, "connect"));
  }
  WakePolls();
  return socket;
}

Result<pid_t> SimProcesses::PidOf(int socket) const {
  sockaddr_un peer{};
  socklen_t bytes = sizeof(peer);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) {
    return Fail(ErrnoStatus(errno, "getpeername"));
  }
  int self = 0;
  int pid = 0;
  const std::string name(peer.sun_path + 1, bytes - offsetof(sockaddr_un, sun_path) - 1);
  if (std::sscanf(name.c_str(), "holdfast-simulation/%d/%d/", &self, &pid) != 2) {
    return Fail(InternalError("not a simulated trainer"));
  }
  return static_cast<pid_t>(pid);
}

Result<agent::PeerCredentials> SimProcesses::PeerOf(int socket) {
  HOLDFAST_ASSIGN_OR_RETURN(const pid_t pid, PidOf(socket));
  return agent::PeerCredentials{pid, kTrainerUser, kTrainerUser};
}

Result<UniqueFd> SimProcesses::PidFdOfPeer(int socket) {
  HOLDFAST_ASSIGN_OR_RETURN(const pid_t pid, PidOf(socket));
  return PidFdOf(pid);
}

Result<UniqueFd> SimProcesses::PidFdOf(pid_t pid) {
  auto found = ends_.find(pid);
  if (found == ends_.end()) return Fail(NotFoundError("no such process"));
  return UniqueFd(::fcntl(found->second.get(), F_DUPFD_CLOEXEC, 0));
}

}  // namespace holdfast::simulation
