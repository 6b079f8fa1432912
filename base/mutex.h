#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/scheduler.h"

// A thin wrapper around std::mutex for clang's thread-safety analysis. Members name the mutex that
// guards them: `int count_ HOLDFAST_GUARDED_BY(mutex_);`. In a simulation each Lock() and each wait
// is a point where the Scheduler may let another thread run.
#if defined(__clang__)
#define HOLDFAST_TSA(x) __attribute__((x))
#else
#define HOLDFAST_TSA(x)
#endif
#define HOLDFAST_GUARDED_BY(m) HOLDFAST_TSA(guarded_by(m))
#define HOLDFAST_REQUIRES(...) HOLDFAST_TSA(requires_capability(__VA_ARGS__))
#define HOLDFAST_EXCLUDES(...) HOLDFAST_TSA(locks_excluded(__VA_ARGS__))

namespace holdfast {

class HOLDFAST_TSA(capability("mutex")) Mutex {
 public:
  void Lock() HOLDFAST_TSA(acquire_capability()) {
    if (Scheduler* scheduler = Scheduler::Installed()) return LockIn(*scheduler);
    mutex_.lock();
  }
  void Unlock() HOLDFAST_TSA(release_capability()) {
    mutex_.unlock();
    if (Scheduler* scheduler = Scheduler::Installed()) scheduler->Wake(this, /*all=*/true);
  }

 private:
  friend class CondVar;
  void LockIn(Scheduler& scheduler) {
    scheduler.Yield();
    while (!mutex_.try_lock()) scheduler.Wait(this, Scheduler::TimePoint::max());
  }
  std::mutex mutex_;
};

class HOLDFAST_TSA(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) HOLDFAST_TSA(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() HOLDFAST_TSA(release_capability()) { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Condition variable for Mutex. Wakeups may be spurious: loop on the condition.
class CondVar {
 public:
  void Wait(Mutex& mutex) HOLDFAST_REQUIRES(mutex) {
    if (Scheduler* scheduler = Scheduler::Installed()) {
      WaitIn(*scheduler, mutex, Scheduler::TimePoint::max());
      return;
    }
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  /// Returns false when `timeout` expired first.
  bool WaitFor(Mutex& mutex, std::chrono::nanoseconds timeout) HOLDFAST_REQUIRES(mutex) {
    if (Scheduler* scheduler = Scheduler::Installed()) {
      return WaitIn(*scheduler, mutex, scheduler->Now() + timeout);
    }
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    bool notified = cv_.wait_for(lock, timeout) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }
  /// Returns false when `deadline` passed first.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      HOLDFAST_REQUIRES(mutex) {
    if (Scheduler* scheduler = Scheduler::Installed()) return WaitIn(*scheduler, mutex, deadline);
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    bool notified = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }
  void NotifyOne() {
    if (Scheduler* scheduler = Scheduler::Installed()) return scheduler->Wake(this, false);
    cv_.notify_one();
  }
  void NotifyAll() {
    if (Scheduler* scheduler = Scheduler::Installed()) return scheduler->Wake(this, true);
    cv_.notify_all();
  }

 private:
  /// No thread runs between the unlock and the wait, so that no notification is missed.
  bool WaitIn(Scheduler& scheduler, Mutex& mutex, Scheduler::TimePoint deadline)
      HOLDFAST_REQUIRES(mutex) {
    mutex.mutex_.unlock();
    scheduler.Wake(&mutex, true);
    const bool notified = scheduler.Wait(this, deadline);
    while (!mutex.mutex_.try_lock()) scheduler.Wait(&mutex, Scheduler::TimePoint::max());
    return notified;
  }

  std::condition_variable cv_;
};

}  // namespace holdfast
