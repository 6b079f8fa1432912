#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

// A thin wrapper around std::mutex for clang's thread-safety analysis. Members name the mutex that
// guards them: `int count_ HOLDFAST_GUARDED_BY(mutex_);`.
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
  void Lock() HOLDFAST_TSA(acquire_capability()) { mutex_.lock(); }
  void Unlock() HOLDFAST_TSA(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
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
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  /// Returns false when `timeout` expired first.
  bool WaitFor(Mutex& mutex, std::chrono::nanoseconds timeout) HOLDFAST_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    bool notified = cv_.wait_for(lock, timeout) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }
  /// Returns false when `deadline` passed first.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      HOLDFAST_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    bool notified = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace holdfast
