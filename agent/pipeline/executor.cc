#include "agent/pipeline/executor.h"

#include <chrono>

namespace holdfast::agent {
namespace {
constexpr size_t kTasksMax = 8192;
}  // namespace

Executor::Executor(uint32_t threads, Clock& clock) : clock_(clock) {
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
  for (Thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

bool Executor::StopWithin(int64_t timeout_ms) {
  const Clock::TimePoint deadline = clock_.Now() + std::chrono::milliseconds(timeout_ms);
  MutexLock lock(mutex_);
  stopping_ = true;
  tasks_.clear();
  changed_.NotifyAll();
  while (!running_.empty()) {
    const auto left = deadline - clock_.Now();
    if (left <= Clock::Duration::zero()) return false;
    changed_.WaitFor(mutex_, left);
  }
  return true;
}

int64_t Executor::OldestTaskMs() {
  MutexLock lock(mutex_);
  if (running_.empty()) return 0;
  return std::chrono::duration_cast<std::chrono::milliseconds>(clock_.Now() - *running_.begin())
      .count();
}

bool Executor::stopping() {
  MutexLock lock(mutex_);
  return stopping_;
}

void Executor::Run() {
  for (;;) {
    std::function<void()> task;
    std::multiset<Clock::TimePoint>::iterator began;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !stopping_) changed_.Wait(mutex_);
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      began = running_.insert(clock_.Now());
    }
    task();
    task = nullptr;
    MutexLock lock(mutex_);
    running_.erase(began);
    changed_.NotifyAll();
  }
}

}  // namespace holdfast::agent
