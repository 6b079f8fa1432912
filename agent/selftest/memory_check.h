#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "agent/selftest/check.h"

namespace holdfast::selftest {

struct MemoryCheckOptions {
  uint64_t bytes = uint64_t{1} << 30;  // at most; an eighth of what is available where that is less
  double seconds = 5;                  // no pass starts after this time
  /// Changes what was written, in tests.
  std::function<void(std::span<uint64_t> words)> damage;
};

/// Writes words that follow from their address, and then their complements, into fresh memory, and
/// reads them back, from several threads. It sees the memory that the kernel gave it, no more.
CheckResult CheckMemory(const MemoryCheckOptions& options);

/// MemAvailable of /proc/meminfo in bytes; 0 when it is not known.
uint64_t AvailableMemory();

}  // namespace holdfast::selftest
