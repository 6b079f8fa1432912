#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

namespace holdfast::agent {

/// Allocates a range of a shared memory file in steps, several at a time, with huge pages as far as
/// the kernel can. Threads end with Run().
class Allocation {
 public:
  static constexpr uint64_t kHugeBytes = 2ULL << 20;
  static constexpr uint64_t kPageBytes = 4096;
  /// Before each step, the available memory is checked.
  static constexpr uint64_t kStepBytes = 64ULL << 20;
  static constexpr uint64_t kThreadsMax = 8;

  /// `memory` is the mapping of the file from its start. `begin` is a multiple of a huge page.
  Allocation(int fd, std::span<std::byte> memory, uint64_t begin, uint64_t end)
      : fd_(fd), memory_(memory), begin_(begin), end_(end), next_(begin) {}

  /// ResourceExhausted, with the numbers, when the memory is not there. Some of the range is
  /// allocated then, until the file is closed.
  Status Run(uint64_t threads_max = kThreadsMax);

 private:
  uint64_t bytes() const { return end_ - begin_; }
  /// Takes one step after another, until none is left or one fails.
  void TakeSteps();
  Status Take(uint64_t at);
  Status FallocateError(int error) const;

  const int fd_;
  const std::span<std::byte> memory_;
  const uint64_t begin_;
  const uint64_t end_;
  std::atomic<uint64_t> next_;     // where the first step begins that no thread has taken
  std::atomic<uint64_t> done_{0};  // bytes of completed steps
  std::atomic<bool> failed_{false};
  Mutex mutex_;
  std::vector<uint64_t> failed_steps_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
