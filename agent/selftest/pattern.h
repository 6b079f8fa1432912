#pragma once

#include <chrono>
#include <cstdint>

// The pattern and the timing of the checks of memory and disks.

namespace holdfast::selftest {

/// Returns the word for a position; different for all positions below 2^63.
constexpr uint64_t PatternWord(uint64_t place) { return (place + 1) * 0x9e3779b97f4a7c15U; }

inline double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace holdfast::selftest
