// Hangs of ranks in marked phases, of ranks before their first operation, and of running ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/detect/detect_test_util.h"

namespace holdfast::detect {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Puts rank 3 into a checkpoint for `seconds_long`, while the others start the next operation at
/// once. Returns how long they have waited.
double Save(FakeJob& job, uint64_t seq, int seconds_long) {
  job.ClearFlights();
  job.state(3).phases = static_cast<uint8_t>(Phase::kCheckpoint);
  double age_s = 0;
  for (int i = 0; i < seconds_long; ++i) {
    for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, seq, age_s);
    EXPECT_THAT(job.Evaluate(), IsEmpty()) << age_s;
    EXPECT_THAT(job.detector.suspicions(), IsEmpty()) << age_s;
    job.ClearFlights();
    job.Advance(seconds(1));
    age_s += 1;
  }
  return age_s;
}

/// Rank 3 makes no more progress. Returns the age of the wait, in seconds, at which the rank is
/// blamed; 0 if it is not blamed.
double BlamedFrom(FakeJob& job, uint64_t seq, double age_s, double until_s) {
  for (; age_s < until_s; age_s += 1) {
    for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, seq, age_s);
    if (!job.Evaluate().empty()) return age_s;
    job.ClearFlights();
    job.Advance(seconds(1));
  }
  return 0;
}

FakeJob Saving() {
  FakeJob job(6);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
  job.Complete(kAll, 5);
  job.Evaluate();
  job.Advance(seconds(1));
  return job;
}

TEST(PhaseTest, AMarkedPhaseExcusesAndItsTimeDoesNotCountLater) {
  FakeJob job = Saving();
  double age_s = Save(job, 5, 100);
  job.state(3).phases = 0;
  const double from_s = BlamedFrom(job, 5, age_s, 300);
  EXPECT_GE(from_s, 100 + 60);
  EXPECT_LE(from_s, 100 + 65);
}

TEST(PhaseTest, AHangInAPhaseIsFoundWhenItLastsFarLongerThanUsual) {
  FakeJob job = Saving();
  job.Complete(kAll, 30);
  job.Evaluate();
  for (uint64_t seq = 30; seq < 33; ++seq) {
    Save(job, seq, 12);
    job.state(3).phases = 0;
    job.ClearFlights();
    job.Complete(kAll, seq + 1);
    job.Evaluate();
    job.Advance(seconds(5));
  }
  const double age_s = Save(job, 33, 45);
  const double from_s = BlamedFrom(job, 33, age_s, 700);
  EXPECT_GE(from_s, 50);
  EXPECT_LE(from_s, 57);
}

TEST(PhaseTest, TheFirstPhaseOfAKindExcusesForTenMinutes) {
  FakeJob job = Saving();
  const double from_s = BlamedFrom(job, 5, Save(job, 5, 590), 700);
  EXPECT_GE(from_s, 600);
  EXPECT_LE(from_s, 605);
}

TEST(PhaseTest, AMarkedStartThatDoesNotEndIsAnAlertAfterAMinuteAndAFaultAfterTen) {
  FakeJob job(6);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
  job.state(3).phases = static_cast<uint8_t>(Phase::kInit);
  job.state(3).step = 0;
  job.Evaluate();
  job.Advance(seconds(2));
  double alerted_s = 0;
  double restarted_s = 0;
  for (double age_s = 0; age_s < 700 && restarted_s == 0; age_s += 1) {
    for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, 0, age_s);
    const auto verdicts = job.Evaluate();
    job.ClearFlights();
    job.Advance(seconds(1));
    if (verdicts.empty()) continue;
    EXPECT_THAT(verdicts[0].ranks, ElementsAre(Rank{3}));
    if (alerted_s == 0) alerted_s = age_s;
    if (verdicts[0].action == Action::kRestartWithoutRoot) restarted_s = age_s;
  }
  EXPECT_GE(alerted_s, 58) << "the phase began two seconds before the operation";
  EXPECT_LE(alerted_s, 62);
  EXPECT_GE(restarted_s, 595);
}

TEST(PhaseTest, PatienceForARankWithoutOperationsCoversTheTimeThatOthersNeeded) {
  FakeJob job(6);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
  job.AddComm(kAll + 1, CommunicatorRole::kTensor, {0, 1});
  for (uint32_t rank = 0; rank < 6; ++rank) job.state(rank).step = 0;
  for (int i = 0; i < 120; ++i) {
    EXPECT_THAT(job.Evaluate(), IsEmpty());
    job.Advance(seconds(1));
  }
  job.Complete(kAll + 1, 30);  // two ranks have completed operations
  const double from_s = BlamedFrom(job, 0, 0, 400);
  EXPECT_GE(from_s, 180) << "1.5 times two minutes";
  EXPECT_LE(from_s, 190);
}

TEST(PhaseTest, AnOperationThatSomeCompletedIsNoHangDuringAMarkedPhase) {
  for (const bool marked : {true, false}) {
    FakeJob job(6);
    job.AddComm(kAll, CommunicatorRole::kData, {2, 3});
    job.AddComm(kAll + 1, CommunicatorRole::kTensor, {0, 3});
    job.Complete(kAll, 5);
    job.Complete(kAll + 1, 30);
    job.state(0).phases = marked ? static_cast<uint8_t>(Phase::kCheckpoint) : 0;
    job.Evaluate();
    job.CompleteOf(3, kAll, 6);
    bool found = false;
    for (double age_s = 0; age_s < 100; age_s += 1) {
      job.AddFlight(2, kAll, kReduce, 5, age_s);
      job.AddFlight(3, kAll + 1, kReduce, 30, age_s, 1024, {}, false);
      found |= !job.Evaluate().empty();
      job.ClearFlights();
      job.Advance(seconds(1));
    }
    EXPECT_EQ(found, !marked);
  }
}

TEST(PhaseTest, ARunningRankHasMorePatienceThanASleepingOne) {
  FakeJob job = Saving();
  job.state(3).process_state = 'R';
  const double from_s = BlamedFrom(job, 5, 0, 200);
  EXPECT_GE(from_s, 75);
  EXPECT_LE(from_s, 77);
}

TEST(PhaseTest, ARankAloneInACommunicatorWaitsForNoRank) {
  FakeJob job(2);
  job.AddComm(kAll, CommunicatorRole::kData, {0});
  job.AddComm(kAll + 1, CommunicatorRole::kTensor, {0, 1});
  job.Complete(kAll + 1, 30);
  for (double age_s = 0; age_s < 100; age_s += 1) {
    job.AddFlight(0, kAll, kReduce, 7, age_s);
    EXPECT_THAT(job.Evaluate(), IsEmpty()) << age_s;
    job.ClearFlights();
    job.Advance(seconds(1));
  }
}

TEST(PhaseTest, ARankStoppedInAMarkedPhaseIsFound) {
  FakeJob job = Saving();
  const double age_s = Save(job, 5, 3);
  job.state(3).process_state = 'T';
  const double from_s = BlamedFrom(job, 5, age_s, 30);
  EXPECT_GT(from_s, 0);
  EXPECT_LE(from_s, 10);
}

}  // namespace
}  // namespace holdfast::detect
