#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "storage/base/status.h"

namespace holdfast::local {

struct ProcessOptions {
  std::vector<std::string> argv;           // argv[0] is a path
  std::map<std::string, std::string> env;  // over this process's environment
  std::string log_path;                    // stdout and stderr are appended here
  std::string error_path;                  // stderr goes here instead, if set
};

/// A child process that dies with its parent (PR_SET_PDEATHSIG) and is killed and reaped on
/// destruction. Thread-compatible.
class Process {
 public:
  static Result<Process> Start(const ProcessOptions& options);
  Process() = default;
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  pid_t pid() const { return pid_; }
  /// Reaps if it has ended.
  bool running();
  void Signal(int signal);
  /// Sends SIGKILL and reaps.
  void Kill();
  /// The wait status once it has ended; nothing when the time ran out.
  std::optional<int> WaitFor(std::chrono::milliseconds timeout);
  /// Exit code, 128 + signal, or nothing while it runs.
  std::optional<int> exit_code();

 private:
  explicit Process(pid_t pid) : pid_(pid) {}
  pid_t pid_ = -1;
  std::optional<int> status_;
};

/// Polls `condition` every few milliseconds until it is true or the time is over.
template <typename Condition>
bool WaitUntil(Condition condition, std::chrono::milliseconds timeout);

/// "<folder of this executable>": where the sibling binaries are; HOLDFAST_BIN_DIR in the
/// environment (set for tests, whose executables are elsewhere) goes first.
std::string BinaryDir();

}  // namespace holdfast::local

#include <thread>

namespace holdfast::local {
template <typename Condition>
bool WaitUntil(Condition condition, std::chrono::milliseconds timeout) {
  auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) return condition();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}
}  // namespace holdfast::local
