// Hangs of jobs that report steps and no operations.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/detect/detect_test_util.h"

namespace holdfast::detect {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr double kStepS = 0.5;

/// A job with two ranks on each node. Ranks named as stalled make no step.
class Stepping {
 public:
  explicit Stepping(uint32_t world = 6) : fake(world), world_(world) {
    for (uint32_t rank = 0; rank < world; ++rank) {
      fake.state(rank).step = 0;
      fake.state(rank).process_state = 'R';
    }
  }

  /// Advances by `length_s`. Returns the verdicts at the end.
  std::vector<Verdict> For(double length_s, const std::set<uint32_t>& stalled = {}) {
    std::vector<Verdict> verdicts;
    for (double passed_s = 0; passed_s < length_s; passed_s += kStepS) {
      fake.Advance(milliseconds(static_cast<int>(1000 * kStepS)));
      for (uint32_t rank = 0; rank < world_; ++rank) {
        RankState& state = fake.state(rank);
        state.steps.clear();
        if (stalled.count(rank) != 0) continue;
        state.steps = {{state.step++, static_cast<uint64_t>(kStepS * 1e9)}};
      }
      verdicts = fake.Evaluate();
    }
    return verdicts;
  }
  const std::vector<Verdict>& suspicions() const { return fake.detector.suspicions(); }

  FakeJob fake;

 private:
  const uint32_t world_;
};

const std::set<uint32_t> kAllRanks = {0, 1, 2, 3, 4, 5};

TEST(StandstillTest, ARankThatMakesNoStepWhileOthersDoIsAnAlertAfterAMinute) {
  Stepping job;
  EXPECT_THAT(job.For(60), IsEmpty());
  EXPECT_THAT(job.For(8, {4}), IsEmpty());
  ASSERT_EQ(job.suspicions().size(), 1U);
  EXPECT_THAT(job.suspicions()[0].ranks, ElementsAre(Rank{4}));
  EXPECT_THAT(job.For(50, {4}), IsEmpty());
  const auto verdicts = job.For(6, {4});
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].fault, FaultClass::kComputeHang);
  EXPECT_EQ(verdicts[0].action, Action::kAlert) << "no rank is seen to wait for it";
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{4}));
}

TEST(StandstillTest, AStoppedProcessIsAVerdictAfterFiveSeconds) {
  Stepping job;
  job.For(60);
  job.fake.state(4).process_state = 'T';
  EXPECT_THAT(job.For(4, {4}), IsEmpty());
  const auto verdicts = job.For(3, {4});
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].action, Action::kRestartWithoutRoot);
  EXPECT_EQ(verdicts[0].confidence, 1);
}

/// A job that communicates once in minutes.
Stepping CommunicatesRarely() {
  Stepping job;
  job.fake.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
  job.fake.Complete(kAll, 2);
  job.For(60);
  return job;
}

TEST(StandstillTest, InAJobThatCommunicatesRarelyAHangIsFoundBeforeOthersWait) {
  Stepping job = CommunicatesRarely();
  job.fake.state(4).process_state = 'S';
  EXPECT_THAT(job.For(48, {4}), IsEmpty());
  auto verdicts = job.For(8, {4});
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].action, Action::kAlert);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{4}));

  Stepping stops = CommunicatesRarely();
  stops.fake.state(4).process_state = 'T';
  verdicts = stops.For(7, {4});
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{4}));

  Stepping evaluates = CommunicatesRarely();
  EXPECT_THAT(evaluates.For(100, kAllRanks), IsEmpty());
}

TEST(StandstillTest, ARankThatIsOneStepBehindMayBeInALongStepLikeTheOthers) {
  Stepping job = CommunicatesRarely();
  EXPECT_THAT(job.For(62, kAllRanks), IsEmpty());
  EXPECT_THAT(job.For(kStepS, {3, 4, 5}), IsEmpty());
  EXPECT_EQ(job.For(kStepS, {3, 4, 5}).size(), 3U) << "now they are two steps behind";
}

TEST(StandstillTest, TheFirstStepsDoNotShowHowLongStepsTake) {
  // The CPU only enqueues the work of the first steps.
  for (const double first_s : {1.0, 2.0}) {
    Stepping job;
    job.For(first_s);
    EXPECT_EQ(job.For(70, kAllRanks).size(), first_s > 1.5 ? 1U : 0U);
  }
}

TEST(StandstillTest, InAJobThatCommunicatesARankWithoutStepsMayHaveOtherWork) {
  for (const bool communicates : {true, false}) {
    Stepping job;
    if (communicates) {
      job.fake.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
      job.fake.Complete(kAll, 2);
    }
    const auto verdicts = job.For(200, {4});
    EXPECT_EQ(verdicts.size(), communicates ? 0U : 1U);
  }
}

TEST(StandstillTest, ASilentNodeThatCommunicatesHasOnlyLostItsAgent) {
  for (const bool communicates : {true, false}) {
    Stepping job = CommunicatesRarely();
    job.fake.silent_node = 1;
    for (uint64_t count = 3; count < 12; ++count) {
      if (communicates) job.fake.CompleteOf(0, kAll, count);
      EXPECT_THAT(job.For(6), IsEmpty());
    }
    const auto verdicts = job.For(20);
    EXPECT_EQ(verdicts.size(), communicates ? 0U : 1U);
  }
}

TEST(StandstillTest, IfNoRankMakesAStepTheRankBehindIsNamed) {
  Stepping job;
  job.For(60);
  job.For(kStepS, {4});
  const auto verdicts = job.For(64, kAllRanks);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{4}));
}

TEST(StandstillTest, IfNoRankMakesAStepAndNoneIsBehindNoRankIsNamed) {
  Stepping job;
  job.For(60);
  const auto verdicts = job.For(64, kAllRanks);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_THAT(verdicts[0].ranks, IsEmpty());
  EXPECT_EQ(verdicts[0].action, Action::kAlert);
}

/// Stalls all ranks for `length_s`. Returns the ranks of the alert at the end.
std::vector<Rank> NamedAfter(Stepping& job, double length_s) {
  const auto verdicts = job.For(length_s, kAllRanks);
  EXPECT_EQ(verdicts.size(), 1U);
  if (verdicts.empty()) return {};
  EXPECT_EQ(verdicts[0].action, Action::kAlert);
  return verdicts[0].ranks;
}

TEST(StandstillTest, IfNoRankMakesAStepTheRankThatWaitsForIoIsNamed) {
  Stepping job;
  EXPECT_THAT(job.For(60), IsEmpty());
  job.fake.state(2).process_state = 'D';
  EXPECT_THAT(NamedAfter(job, 70), ElementsAre(Rank{2}));
  // If half of the ranks do so, they may all wait for one storage system.
  for (const uint32_t rank : {3U, 4U}) job.fake.state(rank).process_state = 'D';
  EXPECT_THAT(NamedAfter(job, 4), IsEmpty());
}

// A rank waits for a GPU by running. A data loader sleeps.
TEST(StandstillTest, IfNoRankMakesAStepTheRankThatDoesNotRunIsNamed) {
  Stepping job;
  EXPECT_THAT(job.For(60), IsEmpty());
  job.fake.state(2).process_state = 'S';
  EXPECT_THAT(NamedAfter(job, 70), ElementsAre(Rank{2}));
  // It ran for a moment: it is not the rank that hangs.
  job.fake.state(2).process_state = 'R';
  job.For(1, kAllRanks);
  job.fake.state(2).process_state = 'S';
  EXPECT_THAT(NamedAfter(job, 10), IsEmpty());
}

TEST(StandstillTest, IfHalfOfTheRanksDoNotRunTheyWaitInThatWay) {
  Stepping job;
  EXPECT_THAT(job.For(60), IsEmpty());
  for (const uint32_t rank : {2U, 3U, 4U}) job.fake.state(rank).process_state = 'S';
  EXPECT_THAT(NamedAfter(job, 70), IsEmpty());
}

TEST(StandstillTest, ARankThatWasNeverSeenRunningIsNotNamed) {
  Stepping job;
  job.fake.state(2).process_state = 'S';
  EXPECT_THAT(job.For(60), IsEmpty());
  EXPECT_THAT(NamedAfter(job, 70), IsEmpty());
}

TEST(StandstillTest, IfNoRankMakesAStepTheRankInAMarkedPhaseIsNamed) {
  Stepping job;
  EXPECT_THAT(job.For(60), IsEmpty());
  job.fake.state(4).phases = static_cast<uint8_t>(Phase::kCheckpoint);
  EXPECT_THAT(job.For(590, kAllRanks), IsEmpty());
  const auto verdicts = job.For(30, kAllRanks);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{4}));
}

TEST(StandstillTest, AMarkedStartThatOutlastsThoseOfTheOthersIsAnAlert) {
  Stepping job;
  job.fake.state(3).phases = static_cast<uint8_t>(Phase::kInit);
  job.fake.state(3).step = 0;
  EXPECT_THAT(job.For(55, {3}), IsEmpty());
  const auto verdicts = job.For(20, {3});
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
  EXPECT_EQ(verdicts[0].action, Action::kAlert);
}

TEST(StandstillTest, ASingleRankIsNoSuspicionAndAnAlertAfterAMinute) {
  Stepping job(1);
  job.For(60);
  EXPECT_THAT(job.For(55, kAllRanks), IsEmpty());
  EXPECT_THAT(job.suspicions(), IsEmpty());
  EXPECT_EQ(job.For(8, kAllRanks).size(), 1U);
}

TEST(StandstillTest, ASilentNodeOfAStalledJobIsDead) {
  Stepping job;
  job.For(60);
  job.fake.silent_node = 2;
  EXPECT_THAT(job.For(38, kAllRanks), IsEmpty());
  const auto verdicts = job.For(4, kAllRanks);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].fault, FaultClass::kDead);
  EXPECT_EQ(verdicts[0].action, Action::kRestartWithoutRoot);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{4}, Rank{5}));
}

TEST(StandstillTest, ASilentNodeOfAProgressingJobIsAnAlert) {
  Stepping job;
  job.For(60);
  job.fake.silent_node = 2;
  EXPECT_THAT(job.For(58), IsEmpty());
  const auto verdicts = job.For(4);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].fault, FaultClass::kDead);
  EXPECT_EQ(verdicts[0].action, Action::kAlert);
}

TEST(StandstillTest, AMarkedPhaseExcusesTheRankAndThoseThatMayWaitForIt) {
  Stepping job;
  job.For(60);
  job.fake.state(0).phases = static_cast<uint8_t>(Phase::kCheckpoint);
  EXPECT_THAT(job.For(200, kAllRanks), IsEmpty());
  job.fake.state(0).phases = 0;
  EXPECT_THAT(job.For(50, kAllRanks), IsEmpty()) << "patience starts at the end of the phase";
}

TEST(StandstillTest, PatienceCoversTheLongestPauseSoFar) {
  Stepping job;
  job.For(60);
  EXPECT_THAT(job.For(55, {4}), IsEmpty());
  job.For(20);
  EXPECT_THAT(job.For(64, {4}), IsEmpty()) << "1.25 times 55 s";
  EXPECT_EQ(job.For(10, {4}).size(), 1U);
}

TEST(StandstillTest, ARankWithoutStepsIsMissedOnceOthersHaveMadeThree) {
  Stepping job;
  EXPECT_THAT(job.For(58, {4}), IsEmpty());
  const auto verdicts = job.For(8, {4});
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{4}));
}

TEST(StandstillTest, ARankWithoutStepsIsMissedAfterMoreThanTheOthersNeededToBegin) {
  Stepping job;
  EXPECT_THAT(job.For(120, kAllRanks), IsEmpty()) << "no rank has begun";
  EXPECT_THAT(job.For(58, {4}), IsEmpty()) << "1.5 times 120 s";
  EXPECT_EQ(job.For(8, {4}).size(), 1U);
}

TEST(StandstillTest, ARankThatHasFinishedIsNotMissed) {
  Stepping job;
  job.For(60);
  job.fake.state(4).ended_orderly = true;
  EXPECT_THAT(job.For(100, {4}), IsEmpty());
}

TEST(StandstillTest, WithoutReportedStepsNothingIsFound) {
  Stepping job;
  EXPECT_THAT(job.For(300, kAllRanks), IsEmpty());
}

TEST(StandstillTest, WithReportedOperationsTheWaitsForGraphDecides) {
  Stepping job;
  job.fake.AddComm(7, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
  job.fake.Complete(7, 20);
  job.For(60);
  EXPECT_THAT(job.For(100, kAllRanks), IsEmpty()) << "the ranks may all evaluate";
}

TEST(StandstillTest, CommunicatorsAloneDoNotCountAsOperations) {
  Stepping job;
  job.fake.AddComm(7, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
  job.For(60);
  job.fake.state(4).process_state = 'T';
  EXPECT_EQ(job.For(8, kAllRanks).size(), 1U);
}

}  // namespace
}  // namespace holdfast::detect
