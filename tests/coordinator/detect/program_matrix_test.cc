// Regression test on a few cells of the fault matrix over rank programs (testing/sim). Runs are
// reproducible: a result that gets worse is caused by a change of the detector or of the simulator.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "testing/sim/program/run.h"

namespace holdfast::sim::program {
namespace {

constexpr uint64_t kSeeds = 3;

Outcome RunOf(Family family, std::string_view fault, uint64_t seed,
              std::vector<std::string> behaviours = {}, double healthy_s = 0) {
  Case what;
  what.family = family;
  what.fault = *FindFault(fault);
  what.behaviours = std::move(behaviours);
  what.healthy_s = healthy_s;
  return RunCase(what, 1000 * seed + static_cast<uint64_t>(family));
}

struct Cell {
  std::string_view fault;
  bool steps_only;      // also run jobs that report only steps
  uint32_t missed_max;  // runs in which the fault is not found and attributed exactly
};

class ProgramFaultTest : public testing::TestWithParam<Cell> {};

TEST_P(ProgramFaultTest, IsAttributedInAllFamilies) {
  uint32_t missed = 0;
  std::string which;
  for (const Family family : kFamilies) {
    const FaultSpec& spec = *FindFault(GetParam().fault);
    if (!Fits(spec, family)) continue;
    if (family == Family::kStepsOnly && !GetParam().steps_only) continue;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      const Outcome outcome = RunOf(family, GetParam().fault, seed);
      if (!outcome.took_effect || outcome.exact) continue;
      ++missed;
      which += fmt::format(" {}:{}", ToString(family), seed);
    }
  }
  EXPECT_LE(missed, GetParam().missed_max) << which;
  RecordProperty("missed", static_cast<int>(missed));
}

INSTANTIATE_TEST_SUITE_P(Faults, ProgramFaultTest,
                         testing::Values(Cell{"sigkill", true, 0}, Cell{"node-gone", true, 0},
                                         Cell{"sigstop", true, 0}, Cell{"loader", false, 0},
                                         Cell{"kernel", false, 0}, Cell{"mismatch", false, 0},
                                         Cell{"storage-marked", false, 0},
                                         Cell{"never-joins", false, 2}, Cell{"gpu-30%", false, 3},
                                         Cell{"gpu-10%", false, 3}, Cell{"nic-2x", false, 4}),
                         [](const testing::TestParamInfo<Cell>& cell) {
                           std::string name(cell.param.fault);
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

TEST(ProgramMatrixTest, ASlowCardOfAJobWithRareOperationsIsFound) {
  uint32_t found = 0;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    found += RunOf(Family::kLocalSgd, "link-2.5x", seed).exact ? 1U : 0U;
  }
  EXPECT_GE(found, 2U);
}

TEST(ProgramMatrixTest, ASlowStageDoesNotMakeAnotherReplicaLookSlow) {
  uint32_t exact = 0;
  for (const std::string_view fault : {"gpu-and-sigstop", "gpu-intermittent"}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const Outcome outcome = RunOf(Family::kInterleaved, fault, seed);
      exact += outcome.exact ? 1 : 0;
      EXPECT_EQ(outcome.wrong.size(), 0U) << fault << seed;
    }
  }
  EXPECT_GE(exact, 7U);
}

TEST(ProgramMatrixTest, ARankOfARingThatIsSlowFromTheStartIsFound) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    EXPECT_TRUE(RunOf(Family::kSendReceive, "gpu-10%-first", seed).exact) << seed;
  }
}

/// The stages of a pipeline have different work, so each of these few members is only compared with
/// its own past.
TEST(ProgramMatrixTest, ASmallChangeOfAStageIsFoundOnceItHasLasted) {
  for (const uint64_t seed : {5, 19, 20, 29, 45}) {
    EXPECT_TRUE(RunOf(Family::kPipeline, "two-gpus", seed).exact) << seed;
  }
  for (const uint64_t seed : {90, 108}) {
    EXPECT_TRUE(RunOf(Family::kExperts, "gpu-5%", seed).exact) << seed;
  }
}

/// Eighty windows of short iterations are a few seconds, in which the work of experts may change.
TEST(ProgramMatrixTest, ChangesOfAFewSecondsAmongFewMembersAreNone) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const Outcome outcome = RunOf(Family::kInterleaved, "none", seed, {"20 ms iterations"}, 120);
    EXPECT_EQ(outcome.wrong.size(), 0U) << seed;
  }
}

/// The group of the expert with most tokens does not wait for the other group, so it needs more own
/// time per token.
TEST(ProgramMatrixTest, AnExpertWithManyTokensIsNotSlow) {
  for (const uint64_t seed : {3, 8, 9, 13}) {
    const Outcome outcome = RunOf(Family::kExperts, "none", seed, {"hot experts"}, 400);
    EXPECT_EQ(outcome.wrong.size(), 0U) << seed;
  }
}

/// Two stages have waited for a rank that compiles.
TEST(ProgramMatrixTest, ALargeChangeIsNoSmallLastingOne) {
  const Outcome outcome = RunOf(Family::kInterleaved, "none", 248, {"jit unmarked"}, 400);
  EXPECT_EQ(outcome.wrong.size(), 0U);
}

/// While it computes, the sends of one of them wait for the other, so its own time does not show.
TEST(ProgramMatrixTest, NeighboursWithOlderGpusInARingAreOfASlowerKind) {
  for (const uint64_t seed : {7, 8, 9, 11, 15}) {
    const Outcome outcome = RunOf(Family::kSendReceive, "none", seed, {"mixed gpus quarter"}, 300);
    EXPECT_EQ(outcome.wrong.size(), 0U) << seed;
  }
}

/// Which of the older GPUs is the slowest changes, and with it the own time of the others.
TEST(ProgramMatrixTest, OlderGpusInARingDoNotBecomeSlower) {
  for (const uint64_t seed : {32, 39}) {
    const Outcome outcome = RunOf(Family::kSendReceive, "none", seed, {"mixed gpus half"}, 1800);
    EXPECT_EQ(outcome.wrong.size(), 0U) << seed;
  }
}

/// In each of these jobs a rank or a connection would be named without one of the rules for
/// congestion: slow connections of all communicators must have a common end, and a slow connection
/// or rank must last longer once congestion was seen.
TEST(ProgramMatrixTest, CongestionBlamesNoRankAndNoConnection) {
  struct Job {
    Family family;
    uint64_t seed;
    double time_s;
    uint32_t names_max = 0;
  };
  for (const Job& job : {Job{Family::kTensorData, 10, 1800}, Job{Family::kPipeline, 1, 1800},
                         Job{Family::kPipeline, 3, 1800}, Job{Family::kPipeline, 4, 1800},
                         Job{Family::kPipeline, 37, 400}, Job{Family::kInterleaved, 5, 1800},
                         Job{Family::kInterleaved, 106, 300, 1}, Job{Family::kThree, 5, 1800},
                         Job{Family::kThree, 45, 400}}) {
    const Outcome outcome = RunOf(job.family, "none", job.seed, {"congestion waves"}, job.time_s);
    const auto names = std::count_if(outcome.wrong.begin(), outcome.wrong.end(),
                                     [](const FalseVerdict& wrong) { return wrong.names; });
    EXPECT_LE(names, job.names_max) << ToString(job.family) << " " << job.seed;
  }
}

class ProgramHealthTest : public testing::TestWithParam<std::string_view> {};

TEST_P(ProgramHealthTest, NoHealthyJobIsRestarted) {
  uint32_t alerts = 0;
  for (const Family family : kFamilies) {
    const Outcome outcome = RunOf(family, "none", 7, {std::string(GetParam())}, 600);
    for (const FalseVerdict& wrong : outcome.wrong) {
      EXPECT_FALSE(wrong.restarts) << ToString(family);
      alerts += wrong.names ? 1 : 0;
    }
  }
  EXPECT_LE(alerts, 3U);
}

INSTANTIATE_TEST_SUITE_P(Behaviours, ProgramHealthTest,
                         testing::Values("evaluation unmarked", "rank-0 checkpoint marked",
                                         "jit unmarked", "first step 2 min marked",
                                         "garbage collection", "stalls", "late digests",
                                         "agent restarts", "nic flaps", "data stalls"),
                         [](const testing::TestParamInfo<std::string_view>& cell) {
                           std::string name(cell.param);
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

}  // namespace
}  // namespace holdfast::sim::program
