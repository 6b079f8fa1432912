#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>

#include "tests/coordinator/state/simulation.h"

// Random sequences of events, checked by an independent oracle. A failure prints its seed and its
// trace. HOLDFAST_TEST_SEED=<seed> runs that sequence alone.

// Sanitizers make each sequence many times slower.
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

bool RunOne(uint64_t seed, Simulation::Counts& total, bool& healed) {
  Simulation simulation(seed);
  const int steps = 60 + static_cast<int>(seed % 240);
  for (int i = 0; i < steps && simulation.oracle().problems().empty(); ++i) {
    simulation.RandomEvent();
  }
  healed = simulation.oracle().problems().empty() && simulation.Heal();
  total.commits += simulation.counts().commits;
  total.peer_commits += simulation.counts().peer_commits;
  total.restores += simulation.counts().restores;
  total.decoded += simulation.counts().decoded;
  total.repaired += simulation.counts().repaired;
  total.max_lost = std::max(total.max_lost, simulation.counts().max_lost);
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

TEST(StateRandomTest, NoSequenceViolatesAnInvariant) {
  uint64_t first = 1;
  uint64_t last = kSequences;
  if (const char* seed = ::getenv("HOLDFAST_TEST_SEED")) {
    first = last = ::strtoull(seed, nullptr, 10);
  }
  Simulation::Counts total;
  for (uint64_t seed = first; seed <= last; ++seed) {
    bool healed = false;
    ASSERT_TRUE(RunOne(seed, total, healed))
        << "replay with HOLDFAST_TEST_SEED=" << seed << (healed ? "" : " (did not heal)");
  }
  std::printf(
      "seeds %lu to %lu: %lu commits, %lu of them at peer; %lu restores, %lu decoded with "
      "up to %lu members lost; %lu shards repaired\n",
      first, last, total.commits, total.peer_commits, total.restores, total.decoded, total.max_lost,
      total.repaired);
  EXPECT_GT(total.commits, last - first);
  EXPECT_GT(total.restores, last - first);
  if (first == last) return;
  EXPECT_GT(total.peer_commits, kSequences / 4);
  EXPECT_GT(total.repaired, kSequences / 50);
  EXPECT_GT(total.decoded, kSequences / 50);
  EXPECT_EQ(total.max_lost, 2U);
}

}  // namespace
}  // namespace holdfast::coord
