#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/status.h"

namespace holdfast::client {

// Not base's Clock: its object is destroyed at exit, while this library's threads run in
// the user's process until it ends.
using MonotonicTime = std::chrono::steady_clock::time_point;
inline MonotonicTime MonotonicNow() { return std::chrono::steady_clock::now(); }
inline MonotonicTime After(uint64_t timeout_ms) {
  // Long enough for any caller, short enough not to overflow.
  constexpr uint64_t kLongest = 1000ULL * 60 * 60 * 24 * 365;
  return MonotonicNow() + std::chrono::milliseconds(timeout_ms < kLongest ? timeout_ms : kLongest);
}

/// Returns the time until `deadline`; 0 when it has passed.
inline uint64_t MillisecondsUntil(MonotonicTime deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - MonotonicNow()).count();
  return left > 0 ? static_cast<uint64_t>(left) : 0;
}

/// Starts a thread that receives none of the process's signals. `name` has at most 15 characters.
/// Returns ResourceExhausted when the process cannot start another thread.
Result<std::thread> StartThread(const char* name, std::function<void()> body);

/// Sets the check that this thread calls while it waits in the library. A result other than 0 ends
/// the wait as Cancelled. NULL removes the check.
void SetStopCheck(int (*check)(void* context), void* context);
/// Calls the check, unless the last call was less than 100 ms ago. Call it without holding a lock:
/// the check may take long.
bool StopRequested();
/// Returns when a waiting thread must call StopRequested() next; the maximum without a check.
MonotonicTime NextStopCheck();

}  // namespace holdfast::client
