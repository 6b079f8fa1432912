#pragma once

#include <cstdint>

namespace charlm {

/// splitmix64. Its state is one number, which is easy to save and restore.
class Random {
 public:
  explicit Random(uint64_t state) : state_(state) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  /// Returns a number in [0, 1).
  float Unit() { return static_cast<float>(Next() >> 40) * 0x1.0p-24F; }
  uint64_t state() const { return state_; }

 private:
  uint64_t state_;
};

}  // namespace charlm
