#include "agent/server/sight_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::agent {
namespace {
constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kStart = 1'000'000 * kMs;

RankSight SightOf(uint32_t rank, bool alive, uint64_t age_ms = 0) {
  RankSight sight;
  sight.who = {"gpt", Rank{rank}, 2, Incarnation{1}, {100, 7}};
  sight.alive = alive;
  sight.telemetry.silent_ns = age_ms * kMs;
  sight.telemetry.in_flight.emplace_back().age_ns = age_ms * kMs;
  return sight;
}

class SightFilterTest : public ::testing::Test {
 protected:
  std::vector<RankSight> Look(std::vector<RankSight> sights, uint64_t at_ms) {
    return filter_.Take(std::move(sights), kStart + at_ms * kMs);
  }
  uint64_t AgeAt(uint64_t at_ms, uint64_t age_ms) {
    const auto sights = Look({SightOf(0, true, age_ms)}, at_ms);
    EXPECT_EQ(sights[0].telemetry.silent_ns, sights[0].telemetry.in_flight[0].age_ns);
    return sights[0].telemetry.in_flight[0].age_ns / kMs;
  }
  SightFilter filter_{100 * kMs, 900 * kMs};
};

TEST_F(SightFilterTest, TimeInWhichTheAgentStoodStillCountsAgainstNobody) {
  EXPECT_EQ(AgeAt(0, 50), 50U);
  EXPECT_EQ(AgeAt(100, 150), 150U);
  EXPECT_EQ(AgeAt(900, 950), 950U) << "late, but that happens";
  EXPECT_EQ(AgeAt(8'000, 8'050), 1'050U) << "7 s beyond the 100 ms of a look";
  EXPECT_EQ(AgeAt(8'100, 8'150), 1'150U);
  EXPECT_EQ(AgeAt(8'200, 100), 100U) << "began afterwards";
  EXPECT_EQ(AgeAt(8'300, 1'300), 300U) << "began while it stood still";
  EXPECT_EQ(AgeAt(10'000, 10'050), 1'450U) << "a second time";
}

TEST_F(SightFilterTest, ADeadRankIsToldOftenEnoughAndNotForEver) {
  const std::vector<RankSight> sights = {SightOf(0, true), SightOf(1, false)};
  uint64_t at = 0;
  for (uint32_t i = 0; i < SightFilter::kDeadTold; ++i) {
    const auto told = Look(sights, at += 100);
    ASSERT_EQ(told.size(), 2U);
    filter_.Told(told);
  }
  EXPECT_EQ(Look(sights, at += 100).size(), 1U);
  filter_.Told(Look(sights, at += 100));
  EXPECT_EQ(Look(sights, at += 100).size(), 1U);
  // Another process of the rank, or another incarnation, is another matter.
  auto other = sights;
  other[1].who.process.start_ticks = 8;
  EXPECT_EQ(Look(other, at += 100).size(), 2U);
  other = sights;
  other[1].who.incarnation = Incarnation{2};
  EXPECT_EQ(Look(other, at += 100).size(), 2U);
}

TEST_F(SightFilterTest, WhatTheCoordinatorDidNotTakeIsToldAgain) {
  uint64_t at = 0;
  for (uint32_t i = 0; i < 10 * SightFilter::kDeadTold; ++i) {
    ASSERT_EQ(Look({SightOf(1, false)}, at += 100).size(), 1U);
  }
}

}  // namespace
}  // namespace holdfast::agent
