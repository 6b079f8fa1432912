#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>

#include "tests/coordinator/state/simulation.h"

// Random sequences of events against an independent oracle. A failure prints its seed and what led
// to it; HOLDFAST_TEST_SEED=<seed> runs that sequence alone.

// Sanitizers make each sequence many times dearer.
#if defined(__SANITIZE_ADDRESS__)
#define HOLDFAST_SLOW_TEST 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HOLDFAST_SLOW_TEST 1
#endif
#endif

namespace holdfast::coord {
namespace {
#if defined(HOLDFAST_SLOW_TEST)
constexpr uint64_t kSequences = 500;
#else
constexpr uint64_t kSequences = 4000;
#endif

bool RunOne(uint64_t seed, uint64_t& commits, uint64_t& restores, bool& healed) {
  Simulation simulation(seed);
  const int steps = 60 + static_cast<int>(seed % 240);
  for (int i = 0; i < steps && simulation.oracle().problems().empty(); ++i) simulation.Happen();
  const uint64_t commits_before = simulation.commits();
  if (simulation.oracle().problems().empty()) simulation.Heal();
  healed = simulation.commits() >= commits_before + 2;  // at memory and at disk
  commits += simulation.commits();
  restores += simulation.restores();
  const bool good = simulation.oracle().problems().empty() && healed;
  if (!good) {
    std::vector<std::string> trace = simulation.TakeTrace();
    const size_t from = trace.size() > 120 ? trace.size() - 120 : 0;
    for (size_t i = from; i < trace.size(); ++i) std::printf("  %s\n", trace[i].c_str());
    for (const std::string& problem : simulation.oracle().problems()) {
      std::printf("PROBLEM: %s\n", problem.c_str());
    }
  }
  return good;
}

TEST(StateRandomTest, NoSequenceBreaksAPromise) {
  uint64_t first = 1;
  uint64_t last = kSequences;
  if (const char* seed = ::getenv("HOLDFAST_TEST_SEED")) {
    first = last = ::strtoull(seed, nullptr, 10);
  }
  uint64_t commits = 0;
  uint64_t restores = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    bool healed = false;
    ASSERT_TRUE(RunOne(seed, commits, restores, healed))
        << "replay with HOLDFAST_TEST_SEED=" << seed << (healed ? "" : " (did not heal)");
  }
  std::printf("seeds %lu to %lu: %lu commits, %lu restores\n", first, last, commits, restores);
  EXPECT_GT(commits, last - first);
  EXPECT_GT(restores, last - first);
}

}  // namespace
}  // namespace holdfast::coord
