#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"

namespace holdfast::cli {

/// The progress of a long command, on stderr: a bar on a terminal, otherwise a line every few
/// seconds. Shows nothing for a short command. Any thread may call Add().
class Progress {
 public:
  /// `total_bytes` 0: unknown, so no percentage is shown. `clock` must outlive this object.
  Progress(std::string what, uint64_t total_bytes, bool enabled, Clock& clock);
  /// Clears the bar.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Add(uint64_t bytes);
  /// Erases the bar before other output; the next Add() draws it again.
  void Clear();

 private:
  std::string Line(uint64_t done, double elapsed_seconds) const;

  const std::string what_;
  const uint64_t total_bytes_;
  const bool enabled_;
  const bool terminal_;
  Clock& clock_;
  const Clock::TimePoint start_;
  std::atomic<uint64_t> done_{0};
  std::atomic<int64_t> next_draw_nanos_;
  Mutex mutex_;
  bool drawn_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast::cli
