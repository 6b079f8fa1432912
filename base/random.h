#pragma once

#include <cstdint>
#include <string>

namespace holdfast {

/// A small, fast, reproducible generator (splitmix64). Not for secrets. Thread-compatible.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  /// Returns a number that is uniform in [0, bound); bound > 0.
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  /// Returns a number that is uniform in [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
  /// Returns true once in `denominator` calls on average.
  bool OneIn(uint64_t denominator) { return Below(denominator) == 0; }

 private:
  uint64_t state_;
};

/// Returns 64 random bits from the kernel, for names of temporary files, IDs and seeds. In a
/// simulation they come from its seed.
uint64_t RandomSeed();
/// Returns `bytes` bytes of RandomSeed() as lower-case hex.
std::string RandomHex(size_t bytes);

}  // namespace holdfast
