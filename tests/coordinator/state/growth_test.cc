#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "bench/state_load.h"

// The rules are compiled for this test so that each of their basic blocks counts itself. The counts
// depend on the code and the events alone, not on the machine or its load.

namespace {
uint64_t blocks = 0;
}  // namespace

extern "C" void __sanitizer_cov_trace_pc() { ++blocks; }

namespace holdfast::bench {
namespace {
/// Counts the work of the rules for jobs of two sizes.
class Growth : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr uint32_t kTimes = 4;  // the larger job has this many times the nodes
  static constexpr uint32_t kNodes = 64;
  // A lookup in a larger sorted table takes more steps.
  static constexpr double kAllowed = 1.5 * kTimes;

  /// Makes the same events for both jobs, and checks that the work grows with their number.
  template <typename Events>
  void Check(const std::string& what, const Events& events) {
    const uint64_t small = Count(small_, events);
    const uint64_t large = Count(large_, events);
    EXPECT_LE(static_cast<double>(large), kAllowed * static_cast<double>(small))
        << what << ": " << small << " blocks for " << small_.world() << " ranks, " << large
        << " for " << large_.world();
    RecordProperty(what, std::to_string(static_cast<double>(large) / static_cast<double>(small)));
  }

  StateLoad small_{kNodes, 2, GetParam()};
  StateLoad large_{kTimes * kNodes, 2, GetParam()};

 private:
  template <typename Events>
  static uint64_t Count(StateLoad& load, const Events& events) {
    const uint64_t before = blocks;
    events(load);
    return blocks - before;
  }
};
INSTANTIATE_TEST_SUITE_P(, Growth, ::testing::Bool(), [](const auto& parity) {
  return parity.param ? "WithParity" : "WithoutParity";
});

TEST_P(Growth, WorkGrowsWithTheNumberOfEvents) {
  Check("attach", [](StateLoad& load) { load.Attach(); });
  Check("join", [](StateLoad& load) { load.Join("first"); });
  Check("fresh start", [](StateLoad& load) {
    load.Run();
    load.RequestRestore();
  });
  Check("save", [](StateLoad& load) {
    load.Save(1);
    load.Save(2);
  });
  Check("attach to a coordinator that started again", [](StateLoad& load) {
    load.Restart();
    load.Attach();
  });
  Check("join again", [](StateLoad& load) {
    load.End();
    load.Join("second");
  });
  Check("prepare", [](StateLoad& load) { load.Prepare(); });
  Check("request a restore", [](StateLoad& load) { load.RequestRestore(); });
  Check("save again", [](StateLoad& load) {
    load.Run();
    load.Save(3);
  });
  Check("join a third time", [](StateLoad& load) {
    load.End();
    load.Join("third");
  });
  Check("request a restore before shards are ready",
        [](StateLoad& load) { load.RequestRestore(); });
  Check("prepare for ranks that wait", [](StateLoad& load) { load.Prepare(); });
  for (StateLoad* load : {&small_, &large_}) {
    EXPECT_EQ(load->TakeSuccesses(), 5 * load->world());  // three joins and two restores
  }
  Check("request again after the coordinator started again", [](StateLoad& load) {
    load.Restart();
    load.Attach();
    load.RequestRestore();
  });
  Check("prepare after the decision", [](StateLoad& load) { load.Prepare(); });
  EXPECT_EQ(large_.TakeSuccesses(), large_.world());
  Check("new processes wait for the old ones", [](StateLoad& load) {
    load.Run();
    load.Save(4);
    load.Join("third");
    load.Run();
  });
  Check("lose", [](StateLoad& load) { load.Lose(); });
}

}  // namespace
}  // namespace holdfast::bench
