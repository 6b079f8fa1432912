#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "agent/peers/pacer.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace holdfast::agent {

/// Where all connections of a server wait for the one pacer. Thread-safe.
class PaceGate {
 public:
  /// `is_busy` says whether the trainers' own traffic runs; asked before each unit, by any thread;
  /// null: never.
  PaceGate(const PacerOptions& options, std::function<bool()> is_busy, const Clock& clock)
      : is_busy_(std::move(is_busy)), pacer_(options, clock) {}

  /// Waits until `bytes` may be sent. False: stopped.
  bool Await(uint64_t bytes) {
    for (;;) {
      const bool busy = is_busy_ && is_busy_();
      MutexLock lock(mutex_);
      if (stopped_) return false;
      pacer_.SetBusy(busy);
      const Clock::Duration wait = pacer_.TryTake(bytes);
      if (wait == Clock::Duration::zero()) return true;
      changed_.WaitFor(mutex_, busy ? std::min<Clock::Duration>(wait, kLook) : wait);
    }
  }
  void Stop() {
    MutexLock lock(mutex_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  /// Time that data has waited for the trainers' own traffic.
  Clock::Duration yielded() const {
    MutexLock lock(mutex_);
    return pacer_.yielded();
  }

 private:
  // Nobody says when a trainer's traffic ends: a hint must not cost it a system call.
  static constexpr std::chrono::milliseconds kLook{1};

  const std::function<bool()> is_busy_;
  mutable Mutex mutex_;
  CondVar changed_;
  Pacer pacer_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopped_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast::agent
