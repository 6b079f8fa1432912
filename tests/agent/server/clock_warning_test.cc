#include "agent/server/clock_warning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::agent {
namespace {
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr int64_t kMillisecond = 1'000'000;

ClockSkew Skew(int64_t ms, int64_t uncertainty_ms) {
  return {ms * kMillisecond, uncertainty_ms * kMillisecond};
}

TEST(ClockWarningTest, ACallThatTookLongProvesNothing) {
  ManualClock clock;
  const auto begin = clock.Now();
  const int64_t theirs = clock.WallNanos();  // equal clocks; the answer was made at once
  clock.Advance(seconds(10));
  const ClockSkew skew = ClockSkew::OfCall(clock, begin, theirs);
  EXPECT_EQ(skew.nanos, 5000 * kMillisecond);
  EXPECT_EQ(skew.least_nanos(), 0);
  EXPECT_EQ(skew.most_nanos(), 10'000 * kMillisecond);
  ClockWarning warning;
  EXPECT_FALSE(warning.Observe(skew));
  EXPECT_EQ(warning.text(), "");
}

TEST(ClockWarningTest, AProvenSkewIsNamedWithItsDirectionUntilAFastCallShowsItsEnd) {
  ClockWarning warning;
  EXPECT_FALSE(warning.Observe(Skew(1000, 0))) << "the limit itself is allowed";
  EXPECT_TRUE(warning.Observe(Skew(3000, 1999)));
  EXPECT_THAT(warning.text(), HasSubstr("the clock is 3.0 s ahead of the coordinator's"));
  EXPECT_FALSE(warning.Observe(Skew(100, 2000))) << "a slow call does not clear it";
  EXPECT_NE(warning.text(), "");
  EXPECT_TRUE(warning.Observe(Skew(100, 10)));
  EXPECT_EQ(warning.text(), "");
  EXPECT_TRUE(warning.Observe(Skew(-2000, 1)));
  EXPECT_THAT(warning.text(), HasSubstr("2.0 s behind the coordinator's"));
}

TEST(ClockWarningTest, TheTextChangesOnlyWithTheSkew) {
  ClockWarning warning;
  EXPECT_TRUE(warning.Observe(Skew(3000, 1)));
  EXPECT_FALSE(warning.Observe(Skew(3001, 1)));
  EXPECT_FALSE(warning.Observe(Skew(4000, 1)));
  EXPECT_TRUE(warning.Observe(Skew(6000, 1)));
  EXPECT_THAT(warning.text(), HasSubstr("6.0 s ahead"));
  EXPECT_TRUE(warning.Observe(Skew(-6000, 1)));
  EXPECT_THAT(warning.text(), HasSubstr("behind"));
}

}  // namespace
}  // namespace holdfast::agent
