#pragma once

#include <cstdint>

#include "agent/peers/pacer.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace holdfast::agent {

/// Where all connections of a server wait for the one pacer. Thread-safe.
class PaceGate {
 public:
  PaceGate(const PacerOptions& options, const Clock& clock) : pacer_(options, clock) {}

  /// Waits until `bytes` may be sent. False: stopped.
  bool Await(uint64_t bytes) {
    MutexLock lock(mutex_);
    while (!stopped_) {
      const Clock::Duration wait = pacer_.TryTake(bytes);
      if (wait == Clock::Duration::zero()) return true;
      changed_.WaitFor(mutex_, wait);
    }
    return false;
  }
  /// Those who wait go on at the new rate at once.
  void SetBusy(bool busy) {
    MutexLock lock(mutex_);
    pacer_.SetBusy(busy);
    changed_.NotifyAll();
  }
  void Stop() {
    MutexLock lock(mutex_);
    stopped_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  Pacer pacer_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopped_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast::agent
