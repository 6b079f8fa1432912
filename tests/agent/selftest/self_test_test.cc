// Tests the checks of a node with real memory, cores and files, and with simulated defects.

#include "agent/selftest/self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>

#include <filesystem>

#include "testing/disk/sim_directory.h"

namespace holdfast::selftest {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20U;

int FirstCore() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  EXPECT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) return core;
  }
  return -1;
}

TEST(CpuCheckTest, EveryCoreComputesTheKnownResults) {
  const CheckResult result = CheckCpu({.seconds = 0.05, .wrong = {}});
  EXPECT_EQ(result.outcome, Outcome::kPassed) << result.what;
}

TEST(CpuCheckTest, ACoreWithOneWrongResultIsNamed) {
  const int defective = FirstCore();
  std::atomic<int> calls = 0;
  const CheckResult result =
      CheckCpu({.seconds = 0.05, .wrong = [&](int core, uint64_t value) {
                  return core == defective && calls++ == 5 ? value ^ 4 : value;
                }});
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_THAT(result.what, HasSubstr("core " + std::to_string(defective) + " in 1 of "));
}

TEST(MemoryCheckTest, IntactMemoryPassesWithItsRates) {
  const CheckResult result = CheckMemory({.bytes = 32 * kMiB, .seconds = 5, .damage = {}});
  EXPECT_EQ(result.outcome, Outcome::kPassed) << result.what;
  EXPECT_EQ(result.bytes, 32 * kMiB);
  EXPECT_GT(result.write_rate, 0);
  EXPECT_GT(result.read_rate, 0);
}

TEST(MemoryCheckTest, AStuckBitIsDetectedByOneOfTheTwoPatterns) {
  for (const bool stuck_at_one : {false, true}) {
    const CheckResult result =
        CheckMemory({.bytes = 32 * kMiB, .seconds = 5, .damage = [&](std::span<uint64_t> words) {
                       uint64_t& word = words[words.size() / 2];
                       word = stuck_at_one ? word | 0x400U : word & ~uint64_t{0x400};
                     }});
    EXPECT_EQ(result.outcome, Outcome::kFailed);
    EXPECT_THAT(result.what, HasSubstr("1 of "));
    EXPECT_THAT(result.what, HasSubstr("the first at byte 16777216"));
    EXPECT_THAT(result.what, HasSubstr("0x0000000000000400"));
  }
}

TEST(MemoryCheckTest, AtMostAnEighthOfTheAvailableMemoryIsUsed) {
  const uint64_t available = AvailableMemory();
  ASSERT_GT(available, 0U);
  const CheckResult result = CheckMemory({.bytes = 17 * kMiB, .seconds = 0, .damage = {}});
  EXPECT_EQ(result.bytes, 17 * kMiB);
  EXPECT_THAT(result.what, HasSubstr("1 patterns")) << "no time for the second";
  const CheckResult little = CheckMemory({.bytes = kMiB, .seconds = 5, .damage = {}});
  EXPECT_EQ(little.bytes, 16 * kMiB) << "the minimum size";
}

class DiskCheckTest : public testing::Test {
 protected:
  CheckResult Check(uint64_t bytes = 64 * kMiB) {
    const auto directory = disk_.Open();
    const CheckResult result = CheckDisk(*directory, {.bytes = bytes, .seconds = 10});
    EXPECT_TRUE(disk_.Files().empty()) << "no file is left";
    return result;
  }

  SimDisk disk_{{.capacity_bytes = 1024 * kMiB}};
};

TEST_F(DiskCheckTest, AnIntactDiskPasses) {
  const CheckResult result = Check();
  EXPECT_EQ(result.outcome, Outcome::kPassed) << result.what;
  EXPECT_EQ(result.bytes, 64 * kMiB);
  EXPECT_GT(result.write_rate, 0);
  EXPECT_GT(result.read_rate, 0);
}

TEST_F(DiskCheckTest, AFlippedBitOfAReadIsDetected) {
  disk_.Inject({.op = SimOp::kRead, .effect = SimEffect::kBitFlip, .skip = 9, .path = {}});
  const CheckResult result = Check();
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_THAT(result.what, HasSubstr("1 of 16 blocks"));
}

TEST_F(DiskCheckTest, AFlippedBitAtRestIsDetected) {
  disk_.Inject({.op = SimOp::kWrite, .effect = SimEffect::kBitFlip, .skip = 3, .path = {}});
  EXPECT_EQ(Check().outcome, Outcome::kFailed);
}

TEST_F(DiskCheckTest, AnErrorOfTheDeviceIsAFailure) {
  for (const SimOp op : {SimOp::kWrite, SimOp::kRead, SimOp::kSync}) {
    disk_.ClearFaults();
    disk_.Inject({.op = op, .effect = SimEffect::kIoError, .path = {}});
    EXPECT_EQ(Check().outcome, Outcome::kFailed) << static_cast<int>(op);
  }
}

TEST_F(DiskCheckTest, AFullDiskIsNotTested) {
  disk_.SetCapacity(8 * kMiB);
  const CheckResult result = Check();
  EXPECT_EQ(result.outcome, Outcome::kNotTested);
  EXPECT_THAT(result.what, HasSubstr("8 MiB are free"));
}

TEST_F(DiskCheckTest, ATestWritesAtLeastOneBlock) { EXPECT_EQ(Check(1).bytes, 4 * kMiB); }

TEST_F(DiskCheckTest, AtMostAQuarterOfTheFreeSpaceIsWritten) {
  disk_.SetCapacity(64 * kMiB);
  EXPECT_EQ(Check().bytes, 16 * kMiB);
}

TEST(SelfTestTest, EachPartHasAResultAndNoFolderIsCreated) {
  std::string folder = testing::TempDir() + "self-testXXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  SelfTestOptions options;
  options.cpu.seconds = 0.01;
  options.memory.bytes = 16 * kMiB;
  options.disk.bytes = 8 * kMiB;
  options.data_dirs = {folder, folder + "/none"};
  std::vector<std::string> reported;
  options.progress = [&](const CheckResult& result) { reported.push_back(result.part); };
  const std::vector<CheckResult> results = RunSelfTest(options);
  EXPECT_THAT(reported,
              testing::ElementsAre("cpu", "memory", "disk " + folder, "disk " + folder + "/none"));
  ASSERT_EQ(results.size(), 4U);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(results[i].outcome, Outcome::kPassed) << results[i].what;
  EXPECT_EQ(results[3].outcome, Outcome::kNotTested);
  EXPECT_THAT(results[3].what, HasSubstr("no such directory"));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  EXPECT_FALSE(std::filesystem::exists(folder + "/none"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace holdfast::selftest
