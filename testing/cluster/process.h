#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace holdfast::local {

struct ProcessOptions {
  std::vector<std::string> argv;           // argv[0] is a path
  std::map<std::string, std::string> env;  // overrides this process's environment
  std::string log_path;                    // stdout and stderr are appended here
  std::string error_path;                  // stderr goes here instead, if set
};

/// A child process that ends with its parent (PR_SET_PDEATHSIG). The destructor kills and reaps it.
/// Thread-compatible.
class Process {
 public:
  static Result<Process> Start(const ProcessOptions& options);
  Process() = default;
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  pid_t pid() const { return pid_; }
  /// Returns whether the process runs. Reaps it if it has ended.
  bool running();
  void Signal(int signal);
  /// Sends SIGKILL and reaps.
  void Kill();
  /// Waits for the end of the process. Returns its wait status; nothing when the timeout expired.
  std::optional<int> WaitFor(std::chrono::milliseconds timeout);
  /// Returns the exit code, or 128 + signal, or nothing while the process runs.
  std::optional<int> exit_code();

 private:
  explicit Process(pid_t pid) : pid_(pid) {}
  pid_t pid_ = -1;
  std::optional<int> status_;
};

/// Polls `condition` every few milliseconds until it is true or the timeout expires. Returns its
/// last value.
template <typename Condition>
bool WaitUntil(Condition condition, std::chrono::milliseconds timeout);

/// Returns the folder of Holdfast's programs: HOLDFAST_BIN_DIR from the environment (set for tests,
/// whose executables are elsewhere) or the folder of this executable.
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
