#include "agent/server/observation_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::agent {
namespace {
constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kStart = 1'000'000 * kMs;

ObservedRank ObservationOf(uint32_t rank, bool alive, uint64_t age_ms = 0) {
  ObservedRank observed;
  observed.who = {"gpt", Rank{rank}, 2, Incarnation{1}, {100, 7}};
  observed.alive = alive;
  observed.telemetry.silent_ns = age_ms * kMs;
  observed.telemetry.in_flight.emplace_back().age_ns = age_ms * kMs;
  return observed;
}

class ObservationFilterTest : public ::testing::Test {
 protected:
  std::vector<ObservedRank> Poll(std::vector<ObservedRank> observations, uint64_t at_ms) {
    return filter_.Take(std::move(observations), kStart + at_ms * kMs);
  }
  uint64_t AgeAt(uint64_t at_ms, uint64_t age_ms) {
    const auto observations = Poll({ObservationOf(0, true, age_ms)}, at_ms);
    EXPECT_EQ(observations[0].telemetry.silent_ns, observations[0].telemetry.in_flight[0].age_ns);
    return observations[0].telemetry.in_flight[0].age_ns / kMs;
  }
  ObservationFilter filter_{100 * kMs, 900 * kMs};
};

TEST_F(ObservationFilterTest, TimeInWhichTheAgentWasStoppedDoesNotCount) {
  EXPECT_EQ(AgeAt(0, 50), 50U);
  EXPECT_EQ(AgeAt(100, 150), 150U);
  EXPECT_EQ(AgeAt(900, 950), 950U) << "a small delay counts";
  EXPECT_EQ(AgeAt(8'000, 8'050), 1'050U) << "7 s beyond the poll interval of 100 ms";
  EXPECT_EQ(AgeAt(8'100, 8'150), 1'150U);
  EXPECT_EQ(AgeAt(8'200, 100), 100U) << "the operation began after the stop";
  EXPECT_EQ(AgeAt(8'300, 1'300), 300U) << "the operation began during the stop";
  EXPECT_EQ(AgeAt(10'000, 10'050), 1'450U) << "after a second stop";
}

TEST_F(ObservationFilterTest, ADeadRankIsReportedALimitedNumberOfTimes) {
  const std::vector<ObservedRank> observations = {ObservationOf(0, true), ObservationOf(1, false)};
  uint64_t at = 0;
  for (uint32_t i = 0; i < ObservationFilter::kDeadReports; ++i) {
    const auto reported = Poll(observations, at += 100);
    ASSERT_EQ(reported.size(), 2U);
    filter_.RecordSent(reported);
  }
  EXPECT_EQ(Poll(observations, at += 100).size(), 1U);
  filter_.RecordSent(Poll(observations, at += 100));
  EXPECT_EQ(Poll(observations, at += 100).size(), 1U);
  // Another process of the rank, or another incarnation, is reported.
  auto other = observations;
  other[1].who.process.start_ticks = 8;
  EXPECT_EQ(Poll(other, at += 100).size(), 2U);
  other = observations;
  other[1].who.incarnation = Incarnation{2};
  EXPECT_EQ(Poll(other, at += 100).size(), 2U);
}

TEST_F(ObservationFilterTest, AReportThatWasNotAcceptedIsRepeated) {
  uint64_t at = 0;
  for (uint32_t i = 0; i < 10 * ObservationFilter::kDeadReports; ++i) {
    ASSERT_EQ(Poll({ObservationOf(1, false)}, at += 100).size(), 1U);
  }
}

}  // namespace
}  // namespace holdfast::agent
