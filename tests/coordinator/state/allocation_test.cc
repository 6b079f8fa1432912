// How often the coordinator allocates memory for each rank. With 100,000 ranks, an allocation for
// each of them is a tenth of a second for every version and for every copy of the state.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#include "bench/state_load.h"

namespace {
uint64_t allocations = 0;
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  std::abort();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t /*bytes*/) noexcept {
  std::free(memory);
}

namespace holdfast::bench {
namespace {
class Allocations : public ::testing::Test {
 protected:
  void SetUp() override {
    load_.Attach();
    load_.Join("run");
    load_.Run();
    for (uint64_t step = 1; step <= 3; ++step) load_.Save(step);
  }
  template <typename Work>
  double ForEachRank(const Work& work) {
    const uint64_t before = allocations;
    work();
    const double each = static_cast<double>(allocations - before) / load_.world();
    RecordProperty("allocations", std::to_string(each));
    return each;
  }
  StateLoad load_{32, 32, false};
};

TEST_F(Allocations, ACopyOfTheStateWithItsVersions) {
  EXPECT_LE(ForEachRank([&] { const coord::State copy = load_.state(); }), 3);
}

TEST_F(Allocations, ReportsOfAVersionInMemoryAndOnDisk) {
  EXPECT_LE(ForEachRank([&] { load_.Save(4); }), 3);
}

}  // namespace
}  // namespace holdfast::bench
