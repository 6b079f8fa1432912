#include "coordinator/detect/ring.h"

#include <gmock/gmock.h>

namespace holdfast::detect {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kMs = 1'000'000;

void AddReceives(RingWaits& ring, const std::vector<uint64_t>& waits_ms, int times) {
  for (int i = 0; i < times; ++i) {
    for (uint32_t member = 0; member < waits_ms.size(); ++member) {
      const uint64_t started_ns = (i + 1) * 200 * kMs;
      ring.Add(member, started_ns, started_ns + waits_ms[member] * kMs);
    }
  }
}

TEST(RingWaitsTest, TheLaterAMemberIsTheLessItWaits) {
  RingWaits ring(5);
  AddReceives(ring, {60, 20, 40, 60, 64}, 40);
  const auto near = [](double share) { return DoubleNear(share, 1e-9); };
  EXPECT_THAT(ring.SharesOf(1), ElementsAre(near(0), near(1), near(0.5), near(0), near(-0.1)));
}

TEST(RingWaitsTest, AMemberThatWaitsLikeTheUsualOneIsNotLate) {
  RingWaits ring(5);
  AddReceives(ring, {60, 20, 40, 60, 64}, 40);
  EXPECT_THAT(ring.SharesOf(3), IsEmpty());
  EXPECT_THAT(ring.SharesOf(4), IsEmpty());
}

TEST(RingWaitsTest, AFewReceivesAreNotEnough) {
  RingWaits ring(3);
  AddReceives(ring, {60, 20, 60}, 10);
  EXPECT_THAT(ring.SharesOf(1), IsEmpty());
}

TEST(RingWaitsTest, EarlierWaitsAreForgotten) {
  RingWaits ring(3);
  AddReceives(ring, {60, 20, 60}, 40);
  AddReceives(ring, {60, 60, 20}, 2000);
  EXPECT_THAT(ring.SharesOf(1), IsEmpty());
  EXPECT_GT(ring.SharesOf(2).at(2), 0.99);
}

TEST(RingWaitsTest, MembersOfOneKindWaitAlike) {
  RingWaits alike(4);
  AddReceives(alike, {60, 46, 60, 61}, 40);
  EXPECT_FALSE(alike.differs());
  RingWaits different(4);
  AddReceives(different, {60, 42, 60, 61}, 40);
  EXPECT_TRUE(different.differs());
}

}  // namespace
}  // namespace holdfast::detect
