#pragma once

#include <chrono>
#include <cstdint>

// What the checks of memory and disks write, and how they take time.

namespace holdfast::selftest {

/// A word that follows from its place, and that no other place below 2^63 has.
constexpr uint64_t PatternWord(uint64_t place) { return (place + 1) * 0x9e3779b97f4a7c15U; }

inline double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace holdfast::selftest
