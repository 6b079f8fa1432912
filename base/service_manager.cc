#include "base/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/fd.h"

namespace holdfast {
namespace {

/// Returns the variable's value and removes the variable.
std::string Take(const char* name) {
  const char* value = std::getenv(name);
  std::string taken = value == nullptr ? "" : value;
  ::unsetenv(name);
  return taken;
}

bool IsThisProcess(const std::string& pid) { return pid == std::to_string(::getpid()); }

}  // namespace

ServiceManager ServiceManager::FromEnvironment() {
  ServiceManager manager;
  manager.socket_ = Take("NOTIFY_SOCKET");
  manager.owns_process_ = IsThisProcess(Take("SYSTEMD_EXEC_PID")) || !manager.socket_.empty();
  const std::string pid = Take("WATCHDOG_PID");
  const long long limit_us = std::strtoll(Take("WATCHDOG_USEC").c_str(), nullptr, 10);
  manager.watched_ = limit_us > 0 && (pid.empty() || IsThisProcess(pid));
  if (manager.watched_) {
    manager.watch_interval_ = std::chrono::milliseconds(std::clamp(limit_us / 3000, 1LL, 1000LL));
  }
  return manager;
}

void ServiceManager::Alive() const {
  if (watched_) Send("WATCHDOG=1", MSG_DONTWAIT);
}

void ServiceManager::Send(std::string_view message, int flags) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_.empty() || socket_.size() >= sizeof(address.sun_path)) return;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  // A failure has no remedy here: a service manager that misses a report acts on that.
  static_cast<void>(::sendto(fd.get(), message.data(), message.size(), flags | MSG_NOSIGNAL,
                             reinterpret_cast<const sockaddr*>(&address), bytes));
}

}  // namespace holdfast
