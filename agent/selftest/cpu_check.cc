#include "agent/selftest/cpu_check.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "storage/format/checksum.h"

namespace holdfast::selftest {
namespace {

using std::chrono::steady_clock;

constexpr size_t kSide = 32;  // of the matrices
constexpr uint32_t kChain = 20'000;
constexpr size_t kNamed = 8;  // cores named in a message

constexpr uint64_t Mix(uint64_t value) {
  value ^= value >> 31U;
  value *= 0x9e3779b97f4a7c15U;
  value ^= value >> 29U;
  value *= 0xbf58476d1ce4e5b9U;
  return value ^ value >> 32U;
}

constexpr uint64_t Chain(uint64_t seed) {
  uint64_t value = seed;
  for (uint32_t i = 0; i < kChain; ++i) value = Mix(value + i) ^ value / 3;
  return value;
}

/// Entries below 2^20, so that no sum of products is rounded.
constexpr double Entry(uint64_t seed, size_t i) {
  return static_cast<double>(Mix(seed + i) & 0xfffffU);
}

/// Returns the sum of a product's entries, each times its position, so that a permutation is
/// detected.
constexpr uint64_t Product(uint64_t seed) {
  std::array<double, kSide * kSide> a{};
  std::array<double, kSide * kSide> b{};
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = Entry(seed, i);
    b[i] = Entry(seed + 7'919, i);
  }
  uint64_t sum = 0;
  for (size_t row = 0; row < kSide; ++row) {
    std::array<double, kSide> line{};
    for (size_t k = 0; k < kSide; ++k) {
      for (size_t column = 0; column < kSide; ++column) {
        line[column] += a[row * kSide + k] * b[k * kSide + column];
      }
    }
    for (size_t column = 0; column < kSide; ++column) {
      sum += static_cast<uint64_t>(line[column]) * (row * kSide + column + 1);
    }
  }
  return sum;
}

constexpr uint32_t BitwiseCrc32c(const std::array<std::byte, 512>& bytes) {
  uint32_t crc = ~0U;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1U ^ (0x82f63b78U & -(crc & 1U));
  }
  return ~crc;
}

constexpr std::array<std::byte, 512> Bytes(uint64_t seed) {
  std::array<std::byte, 512> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(Mix(seed + i) & 0xffU);
  }
  return bytes;
}

struct Case {
  uint64_t seed = 0;
  uint64_t chain = 0;
  uint64_t product = 0;
  uint32_t crc = 0;
};

template <uint64_t kSeed>
constexpr Case Known() {
  return {kSeed, Chain(kSeed), Product(kSeed), BitwiseCrc32c(Bytes(kSeed))};
}

/// Evaluated by the compiler, on the machine that built this program.
constexpr Case kCases[] = {Known<1>(), Known<0x123456789abcdefU>(), Known<~uint64_t{41}>()};

struct Core {
  int number = 0;
  bool pinned = false;
  uint64_t rounds = 0;
  uint64_t wrong = 0;
};

void Compute(const CpuCheckOptions& options, steady_clock::time_point until, Core& core) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core.number, &only);
  core.pinned = pthread_setaffinity_np(pthread_self(), sizeof(only), &only) == 0;
  const auto output = [&](uint64_t result) {
    return options.wrong ? options.wrong(core.number, result) : result;
  };
  do {
    for (const Case& known : kCases) {
      // volatile: the compiler must not evaluate the computation here.
      volatile uint64_t hidden = known.seed;
      const uint64_t seed = hidden;
      const bool right = output(Chain(seed)) == known.chain &&
                         output(Product(seed)) == known.product &&
                         output(Crc32c(Bytes(seed))) == known.crc;
      ++core.rounds;
      core.wrong += right ? 0 : 1;
    }
  } while (steady_clock::now() < until);
}

std::vector<Core> CoresOfThisProcess() {
  std::vector<Core> cores;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back({.number = core});
  }
  return cores;
}

}  // namespace

std::string_view ToString(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed:
      return "passed";
    case Outcome::kFailed:
      return "FAILED";
    case Outcome::kNotTested:
      return "not tested";
  }
  return "not tested";
}

CheckResult CheckCpu(const CpuCheckOptions& options) {
  CheckResult result{.part = "cpu"};
  std::vector<Core> cores = CoresOfThisProcess();
  if (cores.empty()) {
    result.what = "the kernel did not return the cores that this process may use";
    return result;
  }
  const auto begin = steady_clock::now();
  const auto until = begin + std::chrono::duration_cast<steady_clock::duration>(
                                 std::chrono::duration<double>(options.seconds));
  // One pinned thread per core; the end of the block joins them.
  {
    std::vector<std::jthread> threads;
    threads.reserve(cores.size());
    for (Core& core : cores) {
      threads.emplace_back([&options, until, &core] { Compute(options, until, core); });
    }
  }
  result.seconds = std::chrono::duration<double>(steady_clock::now() - begin).count();
  uint64_t rounds = 0;
  size_t wrong = 0;
  std::string which;
  for (const Core& core : cores) {
    rounds += core.rounds;
    if (core.wrong == 0) continue;
    if (wrong++ < kNamed) {
      which += fmt::format("{}core {} in {} of {} rounds", which.empty() ? "" : ", ", core.number,
                           core.wrong, core.rounds);
    }
  }
  if (wrong == 0) {
    result.outcome = Outcome::kPassed;
    result.what = fmt::format("{} cores, {} rounds of known results", cores.size(), rounds);
  } else {
    result.outcome = Outcome::kFailed;
    result.what = fmt::format("wrong results: {}{}", which,
                              wrong > kNamed ? fmt::format(" and {} more", wrong - kNamed) : "");
  }
  return result;
}

}  // namespace holdfast::selftest
