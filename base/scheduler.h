#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

struct pollfd;

namespace holdfast {

/// Runs the threads of a simulated system one at a time, in an order that a seed determines, on
/// virtual time. While a scheduler is installed, Mutex, CondVar, Thread, Poll, RandomSeed and the
/// progress counters of slots use it in place of the kernel. A process without a simulation never
/// installs one. Only the simulation's own operating-system thread uses it.
class Scheduler {
 public:
  using ThreadId = uint64_t;
  using TimePoint = std::chrono::steady_clock::time_point;

  virtual ~Scheduler() = default;
  virtual ThreadId StartThread(std::function<void()> body) = 0;
  /// Blocks until the thread has ended.
  virtual void JoinThread(ThreadId thread) = 0;
  /// Lets another thread run, or none, as the seed determines.
  virtual void Yield() = 0;
  virtual TimePoint Now() const = 0;
  /// Blocks until Wake(object) or `deadline`. Returns false when the deadline passed first.
  virtual bool Wait(const void* object, TimePoint deadline) = 0;
  /// Wakes one thread that waits for the object, or all of them.
  virtual void Wake(const void* object, bool all) = 0;
  /// As poll(2), on virtual time.
  virtual int Poll(pollfd* fds, size_t count, int timeout_ms) = 0;
  /// Makes each Poll() check its descriptors again.
  virtual void WakePolls() = 0;
  virtual uint64_t RandomBits() = 0;

  static Scheduler* Installed() { return installed_; }
  /// nullptr: removes the installed one.
  static void Install(Scheduler* scheduler) { installed_ = scheduler; }

 private:
  inline static Scheduler* installed_ = nullptr;
};

}  // namespace holdfast
