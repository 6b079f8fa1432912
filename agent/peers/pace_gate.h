#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "agent/peers/pacer.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace holdfast::agent {

/// The gate where all connections of a server wait for their common pacer. Thread-safe.
class PaceGate {
 public:
  /// `is_busy` returns whether collectives of the trainers are running. It is called before each
  /// unit, from any thread; null: never busy.
  PaceGate(const PacerOptions& options, std::function<bool()> is_busy, const Clock& clock)
      : is_busy_(std::move(is_busy)), pacer_(options, clock) {}

  /// Blocks until `bytes` may be sent. Returns false when stopped.
  bool Await(uint64_t bytes) {
    for (;;) {
      const bool busy = is_busy_ && is_busy_();
      MutexLock lock(mutex_);
      if (stopped_) return false;
      pacer_.SetBusy(busy);
      const Clock::Duration wait = pacer_.TryTake(bytes);
      if (wait == Clock::Duration::zero()) return true;
      changed_.WaitFor(mutex_, busy ? std::min<Clock::Duration>(wait, kPollInterval) : wait);
    }
  }
  void Stop() {
    MutexLock lock(mutex_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  /// Returns the total time that data has waited for collectives of the trainers.
  Clock::Duration yielded() const {
    MutexLock lock(mutex_);
    return pacer_.yielded();
  }

 private:
  // The gate polls for the end of a collective, because a notification would cost the trainer a
  // system call.
  static constexpr std::chrono::milliseconds kPollInterval{1};

  const std::function<bool()> is_busy_;
  mutable Mutex mutex_;
  CondVar changed_;
  Pacer pacer_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopped_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast::agent
