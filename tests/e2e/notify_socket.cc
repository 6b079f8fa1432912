#include "tests/e2e/notify_socket.h"

#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace holdfast::local {

NotifySocket::NotifySocket(const std::string& address, std::chrono::microseconds watchdog)
    : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, address.data(), address.size());
  if (address[0] == '@') name.sun_path[0] = '\0';
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
  const int on = 1;
  if (::setsockopt(fd_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0 ||
      ::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&name), bytes) != 0) {
    std::abort();
  }
  ::setenv("NOTIFY_SOCKET", address.c_str(), 1);
  ::setenv("WATCHDOG_USEC", std::to_string(watchdog.count()).c_str(), 1);
}

NotifySocket::~NotifySocket() {
  ::unsetenv("NOTIFY_SOCKET");
  ::unsetenv("WATCHDOG_USEC");
}

void NotifySocket::Receive() {
  for (;;) {
    std::array<char, 512> text{};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> control{};
    iovec part{text.data(), text.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t bytes = ::recvmsg(fd_.get(), &message, 0);
    if (bytes < 0) return;
    ucred sender{};
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message)) {
      std::memcpy(&sender, CMSG_DATA(header), sizeof(sender));
    }
    messages_[sender.pid].emplace_back(text.data(), static_cast<size_t>(bytes));
  }
}

const std::vector<std::string>& NotifySocket::Of(pid_t pid) {
  Receive();
  return messages_[pid];
}

size_t NotifySocket::Count(pid_t pid, const std::string& text) {
  size_t count = 0;
  for (const std::string& message : Of(pid)) count += message == text ? 1 : 0;
  return count;
}

OtherThreadsStopped::OtherThreadsStopped(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const pid_t thread = std::stoi(entry.path().filename());
    if (thread == pid || ::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) continue;
    threads_.push_back(thread);
  }
  complete_ = !threads_.empty();
  for (const pid_t thread : threads_) {
    int status = 0;
    complete_ = ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0 &&
                ::waitpid(thread, &status, __WALL) == thread && WIFSTOPPED(status) && complete_;
  }
}

OtherThreadsStopped::~OtherThreadsStopped() {
  for (const pid_t thread : threads_) ::ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
}

}  // namespace holdfast::local
