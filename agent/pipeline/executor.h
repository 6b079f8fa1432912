#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace holdfast::agent {

/// A fixed number of threads that start tasks in the order they were posted. Thread-safe.
class Executor {
 public:
  explicit Executor(uint32_t threads);
  ~Executor();

  /// Returns false, and drops the task, when the queue is full or the executor is stopping.
  [[nodiscard]] bool Post(std::function<void()> task);
  /// Drops tasks that have not begun and waits for those that have. Idempotent.
  void Stop();
  bool stopping();

 private:
  void Run();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace holdfast::agent
