#include "base/random.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdlib>

#include "base/scheduler.h"

namespace holdfast {

uint64_t Random::Next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

uint64_t RandomSeed() {
  if (Scheduler* scheduler = Scheduler::Installed()) return scheduler->RandomBits();
  uint64_t seed = 0;
  // getrandom() of 8 bytes is never interrupted or short once the kernel is seeded.
  if (getrandom(&seed, sizeof seed, 0) != sizeof seed) std::abort();
  return seed;
}

std::string RandomHex(size_t bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  while (text.size() < bytes * 2) {
    uint64_t word = RandomSeed();
    for (int i = 0; i < 16 && text.size() < bytes * 2; ++i, word >>= 4) text += kDigits[word & 15];
  }
  return text;
}

}  // namespace holdfast
