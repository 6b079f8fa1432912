#include "bench/bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/random.h"

namespace holdfast::bench {

double SecondsOf(const std::function<void()>& work) {
  auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void FillRandom(void* into, uint64_t bytes, uint64_t seed) {
  Random random(seed);
  auto* out = static_cast<unsigned char*>(into);
  for (uint64_t done = 0; done < bytes; done += 8) {
    uint64_t word = random.Next();
    std::memcpy(out + done, &word, std::min<uint64_t>(8, bytes - done));
  }
}

}  // namespace holdfast::bench
