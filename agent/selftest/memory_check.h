#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "agent/selftest/check.h"

namespace holdfast::selftest {

struct MemoryCheckOptions {
  uint64_t bytes = uint64_t{1} << 30;  // at most; never more than an eighth of the available memory
  double seconds = 5;                  // no pass starts after this time
  /// Simulates damage in tests: changes the written words.
  std::function<void(std::span<uint64_t> words)> damage;
};

/// Writes words that depend on their position, and then their complements, to fresh memory and
/// reads them back, with several threads. Tests only the memory that the kernel allocates for the
/// check.
CheckResult CheckMemory(const MemoryCheckOptions& options);

/// Returns MemAvailable of /proc/meminfo in bytes; 0 when unknown.
uint64_t AvailableMemory();

}  // namespace holdfast::selftest
