#include "agent/pipeline/loop_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "base/poll.h"

namespace holdfast::agent {

LoopQueue::LoopQueue() : wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void LoopQueue::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(wake_fd_.get(), &one, sizeof(one));
  WakePolls();
}

void LoopQueue::Post(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    tasks_.push_back(std::move(task));
  }
  Wake();
}

void LoopQueue::Run() {
  uint64_t count = 0;
  [[maybe_unused]] ssize_t got = ::read(wake_fd_.get(), &count, sizeof(count));
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const std::function<void()>& task : tasks) task();
}

void LoopQueue::Stop() {
  std::vector<std::function<void()>> dropped;  // destroyed without the mutex
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    dropped.swap(tasks_);
  }
  Wake();
}

bool LoopQueue::stopping() {
  MutexLock lock(mutex_);
  return stopping_;
}

}  // namespace holdfast::agent
