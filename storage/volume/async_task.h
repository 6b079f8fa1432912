#pragma once

#include <cstdint>
#include <future>
#include <system_error>

#include "base/status.h"

namespace holdfast {

/// The image size from which separate threads for the parts of a shard pay off.
inline constexpr uint64_t kMinBytesForThreads = 4ULL << 20;

/// Runs `work` on a new thread. When `own_thread` is false or no thread can be created, `work` runs
/// in the thread that first waits for the result.
template <typename Work>
std::future<Status> RunAsync(Work work, bool own_thread = true) {
  if (own_thread) {
    try {
      return std::async(std::launch::async, work);
    } catch (const std::system_error&) {
      // No thread is available: run deferred, which is slower but correct.
    }
  }
  return std::async(std::launch::deferred, work);
}

}  // namespace holdfast
