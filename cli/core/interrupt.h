#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace holdfast::cli {

/// SIGINT and SIGTERM of this process, handled by a separate thread, so that a command may be
/// interrupted anywhere. The first signal cancels registered calls and lets the command clean up.
/// If that takes longer than a second, or at the second signal, the thread removes registered files
/// and ends the process with 130.
///
/// Call Install() first in main, before any other thread starts: threads inherit its signal mask.
class Interrupt {
 public:
  static void Install();
  static bool requested();
  /// Returns Cancelled after a signal. Loops call it between two pieces of work.
  static Status Check();
  /// Waits up to `timeout_ms`. Returns Cancelled as soon as a signal arrives.
  static Status SleepFor(int64_t timeout_ms);
};

/// Runs `cancel` on the signal thread if a signal arrives while this object exists.
class OnInterrupt {
 public:
  explicit OnInterrupt(std::function<void()> cancel);
  ~OnInterrupt();
  OnInterrupt(const OnInterrupt&) = delete;
  OnInterrupt& operator=(const OnInterrupt&) = delete;

 private:
  size_t id_;
};

/// While this object exists, the first signal only sets seen(), and the command ends its own work.
/// The second signal acts as usual. At most one such object exists.
class DeferInterrupt {
 public:
  DeferInterrupt();
  ~DeferInterrupt();
  DeferInterrupt(const DeferInterrupt&) = delete;
  DeferInterrupt& operator=(const DeferInterrupt&) = delete;

  static bool seen();
};

/// A file that must not outlive an interrupted or failed command. The destructor removes it, or the
/// signal thread when it ends the process, unless Keep() was called.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }
  /// Keeps the file, for example after it was renamed.
  void Keep();

 private:
  std::string path_;
  size_t id_;
  bool kept_ = false;
};

}  // namespace holdfast::cli
