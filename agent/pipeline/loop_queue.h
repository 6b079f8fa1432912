#pragma once

#include <functional>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"

namespace holdfast::agent {

/// Tasks for the node's loop thread. Thread-safe, except Run(), which the loop thread calls; its
/// mutex is a leaf.
class LoopQueue {
 public:
  LoopQueue();

  /// Returns whether the queue can wake the loop thread.
  bool valid() const { return wake_fd_.valid(); }
  /// Readable while tasks are waiting or after Stop().
  int fd() const { return wake_fd_.get(); }
  /// Adds a task. Drops it after Stop().
  void Post(std::function<void()> task);
  /// Runs the tasks that were posted so far.
  void Run();
  /// Drops the tasks that have not begun. Idempotent.
  void Stop();
  bool stopping();

 private:
  void Wake();

  const UniqueFd wake_fd_;
  Mutex mutex_;
  std::vector<std::function<void()>> tasks_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast::agent
