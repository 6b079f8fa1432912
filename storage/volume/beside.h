#pragma once

#include <cstdint>
#include <future>
#include <system_error>

#include "storage/base/status.h"

namespace holdfast {

/// Below this the parts of a shard are not worth a thread each.
inline constexpr uint64_t kThreadsWorthBytes = 4ULL << 20;

/// Runs `work` on a thread of its own; when the result is asked for if that is not wanted or no
/// thread can be made.
template <typename Work>
std::future<Status> RunBeside(Work work, bool own_thread = true) {
  if (own_thread) {
    try {
      return std::async(std::launch::async, work);
    } catch (const std::system_error&) {
      // Falls through: slower, and right.
    }
  }
  return std::async(std::launch::deferred, work);
}

}  // namespace holdfast
