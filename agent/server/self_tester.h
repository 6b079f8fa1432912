#pragma once

#include <cstdint>
#include <optional>

#include "agent/selftest/self_test.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "coordinator/api/coordinator.pb.h"

namespace holdfast::agent {

/// Runs the self-tests of the node that the coordinator's replies name, one at a time, in its own
/// thread. Thread-safe.
class SelfTester {
 public:
  explicit SelfTester(selftest::SelfTestOptions options);
  /// Waits until the part that is being tested has its result.
  ~SelfTester();

  /// Starts the test of this number, unless it has been started already. 0: no test is due.
  void Request(uint64_t number);
  /// Returns the result of the last requested test; nullopt until it has ended.
  std::optional<coordinator::SelfTest> result() const;

 private:
  void Run(uint64_t number);
  bool stopping() const;

  selftest::SelfTestOptions options_;
  mutable Mutex mutex_;
  uint64_t requested_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  uint64_t started_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  bool running_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  coordinator::SelfTest result_ HOLDFAST_GUARDED_BY(mutex_);
  Thread thread_;  // Request() and the destructor only
};

}  // namespace holdfast::agent
