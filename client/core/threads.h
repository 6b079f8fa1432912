#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "storage/base/status.h"

namespace holdfast::client {

// Not storage/base's Clock: its object is destroyed at exit, while this library's threads live in
// somebody else's process until the very end.
using MonotonicTime = std::chrono::steady_clock::time_point;
inline MonotonicTime MonotonicNow() { return std::chrono::steady_clock::now(); }
inline MonotonicTime After(uint64_t timeout_ms) {
  // Far enough for any caller, near enough not to overflow.
  constexpr uint64_t kLongest = 1000ULL * 60 * 60 * 24 * 365;
  return MonotonicNow() + std::chrono::milliseconds(timeout_ms < kLongest ? timeout_ms : kLongest);
}

/// Starts a thread that receives none of the process's signals. `name` has at most 15 characters.
/// ResourceExhausted when the process may not have another thread.
Result<std::thread> StartThread(const char* name, std::function<void()> body);

/// What this thread asks while it waits in the library: other than 0 ends the wait as Cancelled.
/// NULL: nothing is asked.
void SetStopCheck(int (*check)(void* context), void* context);
/// Asks, unless that was less than 100 ms ago. Holds no lock: the check may take others' time.
bool StopAsked();
/// When a thread that waits shall ask next.
MonotonicTime NextStopCheck();

}  // namespace holdfast::client
