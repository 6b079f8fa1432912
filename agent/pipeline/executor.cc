#include "agent/pipeline/executor.h"

namespace holdfast::agent {
namespace {
constexpr size_t kTasksMax = 8192;
}  // namespace

Executor::Executor(uint32_t threads) {
  threads_.reserve(threads);
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

Executor::~Executor() { Stop(); }

bool Executor::Post(std::function<void()> task) {
  MutexLock lock(mutex_);
  if (stopping_ || tasks_.size() >= kTasksMax) return false;
  tasks_.push_back(std::move(task));
  changed_.NotifyOne();
  return true;
}

void Executor::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    tasks_.clear();
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

bool Executor::stopping() {
  MutexLock lock(mutex_);
  return stopping_;
}

void Executor::Run() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !stopping_) changed_.Wait(mutex_);
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace holdfast::agent
