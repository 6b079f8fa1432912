#pragma once

#include <deque>
#include <functional>
#include <set>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace holdfast::agent {

/// A fixed number of threads that start tasks in the order they were posted. Thread-safe.
class Executor {
 public:
  Executor(uint32_t threads, Clock& clock);
  ~Executor();

  /// Returns false, and drops the task, when the queue is full or the executor is stopping.
  [[nodiscard]] bool Post(std::function<void()> task);
  /// Drops tasks that have not begun and waits for those that have. Idempotent.
  void Stop();
  /// Does the same, but waits at most `timeout_ms`. Returns false when a task still runs; the
  /// destructor then waits for it.
  bool StopWithin(int64_t timeout_ms);
  bool stopping();
  /// Returns how long the oldest running task has been running; 0: none runs.
  int64_t OldestTaskMs();

 private:
  void Run();

  Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::multiset<Clock::TimePoint> running_ HOLDFAST_GUARDED_BY(mutex_);  // when each began
  std::vector<Thread> threads_;
};

}  // namespace holdfast::agent
