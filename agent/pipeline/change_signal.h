#pragma once

#include <cstdint>

#include "base/mutex.h"

namespace holdfast::agent {

/// Wakes threads that wait for a change of state that other mutexes guard. A waiter calls count(),
/// then reads the state. If the waiter finds nothing to do, it calls AwaitMore() with that count.
/// No change is missed, and no mutex of the state is held during the wait. Thread-safe; its mutex
/// is a leaf.
class ChangeSignal {
 public:
  /// Call it after the state has changed. Does not block.
  void Raise() {
    MutexLock lock(mutex_);
    ++count_;
    raised_.NotifyAll();
  }
  /// Returns the number of changes so far.
  uint64_t count() {
    MutexLock lock(mutex_);
    return count_;
  }
  /// Waits until there are more than `seen` changes.
  void AwaitMore(uint64_t seen) {
    MutexLock lock(mutex_);
    while (count_ <= seen) raised_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar raised_;
  uint64_t count_ HOLDFAST_GUARDED_BY(mutex_) = 0;
};

}  // namespace holdfast::agent
