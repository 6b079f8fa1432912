#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace holdfast::cli {

/// Runs work(0) … work(count - 1) on up to `threads` threads, started in this order. After a call
/// has returned false, no further call is started. Returns when all calls have ended.
inline void ParallelFor(size_t count, size_t threads, const std::function<bool(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::atomic<bool> going{true};
  auto loop = [&] {
    while (going) {
      size_t i = next++;
      if (i >= count) return;
      if (!work(i)) going = false;
    }
  };
  std::vector<std::thread> others;
  for (size_t t = 1; t < std::min(count, threads); ++t) others.emplace_back(loop);
  loop();
  for (std::thread& other : others) other.join();
}

}  // namespace holdfast::cli
