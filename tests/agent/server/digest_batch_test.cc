#include "agent/server/digest_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::agent {
namespace {
using ::testing::IsEmpty;

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kStart = 1'000'000 * kMs;

class DigestBatchTest : public ::testing::Test {
 protected:
  /// Polls ten times per second, not exactly. Returns how many polls each message had.
  std::vector<size_t> Poll(int polls, size_t jobs = 1) {
    std::vector<size_t> messages;
    for (int i = 0; i < polls; ++i) {
      now_ += 100 * kMs + (i % 2 == 0 ? kMs : 0) - (i % 2 == 1 ? kMs : 0);
      std::vector<coordinator::Digest> digests(jobs);
      digests.front().set_number(number_++);
      ObservedRank observed;
      observed.alive = false;
      observed.telemetry.silent_ns = 7;
      batch_.Add(std::move(digests), {observed});
      if (batch_.IsDue(now_)) messages.push_back(Take());
    }
    return messages;
  }
  size_t Take() {
    const auto polls = batch_.Take(now_);
    for (const DigestBatch::Poll& poll : polls) {
      EXPECT_EQ(poll.digests.front().number(), sent_++) << "in order, and none is missing";
      EXPECT_FALSE(poll.observations.at(0).alive);
      EXPECT_EQ(poll.observations.at(0).telemetry.silent_ns, 0U) << "not kept a second time";
    }
    return polls.size();
  }

  DigestBatch batch_;
  uint64_t now_ = kStart;
  uint64_t number_ = 0;
  uint64_t sent_ = 0;
};

TEST_F(DigestBatchTest, WithoutAPauseEveryPollIsAMessage) {
  EXPECT_THAT(Poll(5), ::testing::ElementsAre(1, 1, 1, 1, 1));
}

TEST_F(DigestBatchTest, PollsWithinThePauseComeTogether) {
  Poll(1);
  batch_.SetPause(500 * kMs);
  EXPECT_THAT(Poll(15), ::testing::ElementsAre(5, 5, 5));
}

TEST_F(DigestBatchTest, ThePauseHasALimit) {
  Poll(1);
  batch_.SetPause(UINT64_MAX);
  EXPECT_THAT(Poll(20), ::testing::ElementsAre(10, 10));
}

TEST_F(DigestBatchTest, ManyDigestsAreDueAtOnce) {
  Poll(1);
  batch_.SetPause(1'000 * kMs);
  EXPECT_THAT(Poll(6, DigestBatch::kDigestsMax / 2), ::testing::ElementsAre(2, 2, 2));
}

TEST_F(DigestBatchTest, NothingIsDueWithoutDigests) {
  batch_.Add({}, {});
  EXPECT_FALSE(batch_.IsDue(kStart));
  EXPECT_THAT(batch_.Take(kStart), IsEmpty());
}

}  // namespace
}  // namespace holdfast::agent
