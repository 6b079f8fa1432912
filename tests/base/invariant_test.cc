#include "base/invariant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace holdfast {
namespace {
using ::testing::HasSubstr;
using ::testing::Not;

int evaluated = 0;
int Costly() { return ++evaluated; }

TEST(InvariantTest, AStatementThatHoldsCostsNoFields) {
  InvariantMonitor monitor("part");
  const uint64_t before = InvariantViolations();
  EXPECT_TRUE(HOLDFAST_INVARIANT(monitor, 1 + 1 == 2, Kv("value", Costly())));
  EXPECT_EQ(evaluated, 0);
  EXPECT_FALSE(monitor.violated());
  EXPECT_TRUE(monitor.error().ok());
  EXPECT_EQ(monitor.what(), "");
  EXPECT_EQ(InvariantViolations(), before);
}

TEST(InvariantTest, AViolationIsLoggedCountedAndKept) {
  InvariantMonitor monitor("lm/rank-3");
  const uint64_t before = InvariantViolations();
  const int users = -1;
  testing::internal::CaptureStderr();
  EXPECT_FALSE(HOLDFAST_INVARIANT(monitor, users >= 0, Kv("slot", 2), Kv("users", users)));
  const int line = __LINE__ - 1;
  EXPECT_FALSE(HOLDFAST_INVARIANT(monitor, users > 7));
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string at = "tests/base/invariant_test.cc:" + std::to_string(line);
  EXPECT_THAT(log, HasSubstr(" E holdfast InvariantViolated component=lm/rank-3 at=" + at +
                             " invariant=\"users >= 0\" values=\"slot=2 users=-1\"\n"));
  EXPECT_TRUE(monitor.violated());
  EXPECT_EQ(monitor.what(), "users >= 0 does not hold at " + at + " (slot=2 users=-1)");
  EXPECT_EQ(monitor.error().code(), ErrorCode::kInternal);
  EXPECT_THAT(monitor.error().message(), HasSubstr("lm/rank-3 has stopped"));
  EXPECT_EQ(InvariantViolations(), before + 2);
  EXPECT_NE(FirstInvariantViolation(), "");
}

TEST(InvariantTest, AViolationStopsOnlyItsComponent) {
  InvariantMonitor one("lm/rank-0");
  InvariantMonitor other("lm/rank-1");
  EXPECT_FALSE(HOLDFAST_INVARIANT(one, false));
  EXPECT_TRUE(one.violated());
  EXPECT_FALSE(other.violated());
}

TEST(InvariantTest, ManyViolationsDoNotFillTheLog) {
  InvariantMonitor monitor("part");
  const uint64_t before = InvariantViolations();
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) HOLDFAST_INVARIANT(monitor, n < 0, Kv("n", n));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 16);
  EXPECT_EQ(InvariantViolations(), before + 4000);
}

}  // namespace
}  // namespace holdfast
