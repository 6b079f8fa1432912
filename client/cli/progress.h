#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace holdfast::cli {

/// How far a long command is, on stderr: a bar redrawn in place on a terminal, otherwise a line
/// every few seconds. Nothing is shown for what is over at once. Add() may be called from any
/// thread.
class Progress {
 public:
  /// `total_bytes` 0: not known, no percentage. `clock` outlives it.
  Progress(std::string what, uint64_t total_bytes, bool enabled, Clock& clock);
  /// Clears the bar.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Add(uint64_t bytes);
  /// Takes back what was added for a piece that has to be done again.
  void Retract(uint64_t bytes) { done_ -= bytes; }
  /// Takes a bar off the screen before something else is printed; the next Add() draws it again.
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
