#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "base/fd.h"

namespace holdfast::local {

/// A service manager's socket. While it exists, it sets $NOTIFY_SOCKET and $WATCHDOG_USEC of this
/// process, so it receives the reports of processes that are started meanwhile. Thread-compatible.
class NotifySocket {
 public:
  /// `address` is a path, or an abstract name after '@'.
  NotifySocket(const std::string& address, std::chrono::microseconds watchdog);
  ~NotifySocket();

  /// Returns all messages of a process up to now, in order.
  const std::vector<std::string>& Of(pid_t pid);
  /// Returns how many messages `text` the process has sent up to now.
  size_t Count(pid_t pid, const std::string& text);

 private:
  void Receive();

  UniqueFd fd_;
  std::map<pid_t, std::vector<std::string>> messages_;
};

/// Stops all threads of a process except the first. The destructor continues them.
class OtherThreadsStopped {
 public:
  explicit OtherThreadsStopped(pid_t pid);
  ~OtherThreadsStopped();
  /// Returns whether at least one thread is stopped and none of them runs.
  bool complete() const { return complete_; }

 private:
  std::vector<pid_t> threads_;
  bool complete_ = false;
};

}  // namespace holdfast::local
