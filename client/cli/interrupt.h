#pragma once

#include <functional>
#include <string>

#include "storage/base/status.h"

namespace holdfast::cli {

/// SIGINT and SIGTERM of this process, taken by a thread of its own, so that a command may be
/// interrupted anywhere. The first one cancels registered calls and lets the command clean up; when
/// that takes longer than a second, or at the second signal, registered files are removed and the
/// process ends with 130.
///
/// Call Install() first in main, before any other thread starts: threads inherit its signal mask.
class Interrupt {
 public:
  static void Install();
  static bool requested();
  /// Cancelled once a signal came. Loops ask between two pieces of work.
  static Status Check();
  /// Waits up to `timeout_ms`; Cancelled as soon as a signal comes.
  static Status SleepFor(int64_t timeout_ms);
};

/// Runs `cancel` (from the signal thread) if a signal comes while this exists.
class OnInterrupt {
 public:
  explicit OnInterrupt(std::function<void()> cancel);
  ~OnInterrupt();
  OnInterrupt(const OnInterrupt&) = delete;
  OnInterrupt& operator=(const OnInterrupt&) = delete;

 private:
  size_t id_;
};

/// While this exists, the first signal is only told, by seen(): the command ends in its own way.
/// The second is one as usual. One at a time.
class DeferInterrupt {
 public:
  DeferInterrupt();
  ~DeferInterrupt();
  DeferInterrupt(const DeferInterrupt&) = delete;
  DeferInterrupt& operator=(const DeferInterrupt&) = delete;

  static bool seen();
};

/// A file that must not outlive an interrupted or failed command: removed by the destructor, and by
/// the signal thread if the process is ended by it, unless Keep() was called.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }
  /// It was renamed: no longer ours to remove.
  void Keep();

 private:
  std::string path_;
  size_t id_;
  bool kept_ = false;
};

}  // namespace holdfast::cli
