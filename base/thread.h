#pragma once

#include <functional>
#include <thread>
#include <tuple>
#include <utility>

#include "base/scheduler.h"

namespace holdfast {

/// A std::thread, or a thread of the simulation while a Scheduler is installed. Join it before its
/// destruction.
class Thread {
 public:
  Thread() = default;
  template <typename Body, typename... Arguments>
  explicit Thread(Body&& body, Arguments&&... arguments) {
    if (Scheduler* scheduler = Scheduler::Installed()) {
      simulated_ = scheduler->StartThread(
          [body = std::forward<Body>(body),
           bound = std::make_tuple(std::forward<Arguments>(arguments)...)]() mutable {
            std::apply(body, bound);
          });
    } else {
      thread_ = std::thread(std::forward<Body>(body), std::forward<Arguments>(arguments)...);
    }
  }
  Thread(Thread&& other) noexcept
      : thread_(std::move(other.thread_)), simulated_(std::exchange(other.simulated_, 0)) {}
  Thread& operator=(Thread&& other) noexcept {
    thread_ = std::move(other.thread_);
    simulated_ = std::exchange(other.simulated_, 0);
    return *this;
  }

  bool joinable() const { return simulated_ != 0 || thread_.joinable(); }
  void join() {
    if (simulated_ == 0) return thread_.join();
    Scheduler::Installed()->JoinThread(std::exchange(simulated_, 0));
  }

 private:
  std::thread thread_;
  Scheduler::ThreadId simulated_ = 0;
};

}  // namespace holdfast
