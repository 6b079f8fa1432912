// How long a hand-written job may make no progress until a hang is a verdict.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "tests/coordinator/detect/detect_test_util.h"

namespace holdfast::detect {
namespace {
using std::chrono::seconds;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Six ranks that have completed 30 operations. All but the absent ones wait in the next one.
struct Waiting {
  explicit Waiting(std::set<uint32_t> absent_ranks = {3}) : absent(std::move(absent_ranks)) {
    job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
    job.Complete(kAll, 30);
    job.Evaluate();
    job.Advance(seconds(70));
  }

  /// Waits with a report each second. Returns the last verdicts.
  std::vector<Verdict> For(int length_s) {
    std::vector<Verdict> verdicts;
    for (int i = 0; i < length_s; ++i) {
      job.Advance(seconds(1));
      ++age_s;
      job.ClearFlights();
      for (uint32_t rank = 0; rank < 6; ++rank) {
        if (rank == lost) continue;
        if (absent.count(rank) == 0) job.AddFlight(rank, kAll, kReduce, 30, age_s);
        if (enqueued.count(rank) != 0)
          job.AddFlight(rank, kAll, kReduce, 31, age_s, 1024, {}, false);
      }
      verdicts = job.Evaluate();
    }
    return verdicts;
  }

  FakeJob job{6};
  std::set<uint32_t> absent;
  std::set<uint32_t> enqueued;  // ranks whose GPU has not started an operation
  uint32_t lost = ~0U;          // a rank whose records are lost
  double age_s = 0;
};

TEST(PatienceTest, AGpuThatDoesNotStartWhatIsEnqueuedIsAVerdictAfterHalfAMinute) {
  Waiting wait;
  wait.job.state(3).process_state = 'R';
  wait.enqueued = {3};
  EXPECT_THAT(wait.For(26), IsEmpty());
  EXPECT_THAT(wait.For(6), SizeIs(1));
}

TEST(PatienceTest, AGpuMayWaitForAnotherAbsentRank) {
  // The GPU of rank 3 may be in a communication that is not recorded, with rank 4, which compiles.
  Waiting wait({3, 4});
  for (const uint32_t rank : {3U, 4U}) wait.job.state(rank).process_state = 'R';
  wait.enqueued = {3};
  EXPECT_THAT(wait.For(55), IsEmpty());
  EXPECT_THAT(wait.job.detector.suspicions(), SizeIs(2));
}

TEST(PatienceTest, AProcessThatDoesNotRunIsAVerdictAfterFiftySeconds) {
  Waiting idle;
  EXPECT_THAT(idle.For(46), IsEmpty());
  EXPECT_THAT(idle.For(6), SizeIs(1));
  // A process that runs now and then may write a checkpoint.
  Waiting writes;
  writes.For(20);
  writes.job.state(3).process_state = 'R';
  writes.For(1);
  writes.job.state(3).process_state = 'D';
  EXPECT_THAT(writes.For(35), IsEmpty());
  EXPECT_THAT(writes.For(6), SizeIs(1));
}

TEST(PatienceTest, ALostRecordIsNoProgress) {
  Waiting wait;
  wait.enqueued = {3};
  wait.For(20);
  wait.lost = 3;
  wait.For(1);
  wait.lost = ~0U;
  EXPECT_THAT(wait.For(11), SizeIs(1));
}

TEST(PatienceTest, ARankWhoseRecordIsLostIsNotBlamed) {
  Waiting wait{std::set<uint32_t>{}};
  wait.enqueued = {0, 1, 2, 3, 4, 5};
  for (const Verdict& verdict : wait.For(70)) EXPECT_THAT(verdict.ranks, IsEmpty());
  wait.lost = 2;
  for (const Verdict& verdict : wait.For(1)) EXPECT_THAT(verdict.ranks, IsEmpty());
}

TEST(PatienceTest, PatienceForAFirstOperationCoversTheTimeThatOthersNeeded) {
  // The other ranks compiled for two minutes.
  FakeJob job(6);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
  job.Evaluate();
  job.Advance(seconds(120 + 100));
  for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, 0, 100);
  EXPECT_THAT(job.Evaluate(), IsEmpty());
  job.ClearFlights();
  job.Advance(seconds(100));
  for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, 0, 200);
  EXPECT_THAT(job.Evaluate(), SizeIs(1));
}

TEST(PatienceTest, PatienceCoversOneAndAHalfOfTheLongestStep) {
  for (const double age_s : {100.0, 140.0}) {
    FakeJob job = InOperation({0, 1, 2, 4, 5}, age_s);
    job.state(3).steps = {{99, 90'000'000'000}};
    job.Advance(seconds(80));
    EXPECT_EQ(job.Evaluate().size(), age_s < 135 ? 0U : 1U);
  }
}

TEST(PatienceTest, ATransferOfUnknownDurationIsSuspectedAfterTwoSteps) {
  // Gloo does not report how long sends and receives take. On a busy machine, steps take seconds.
  struct Case {
    uint64_t step_s;
    double age_s;
    size_t found;
  };
  for (const Case& c :
       {Case{0, 5.5, 1}, Case{4, 7.5, 0}, Case{4, 8.5, 1}, Case{90, 59, 0}, Case{90, 61, 1}}) {
    FakeJob job(4);
    job.AddComm(kAll, CommunicatorRole::kPipeline, {0, 1, 2, 3});
    job.Complete(kAll, 30, CollectiveKind::kReceive);
    if (c.step_s > 0) job.state(0).steps = {{99, c.step_s * 1'000'000'000}};
    job.Evaluate();
    job.Advance(seconds(70));
    job.AddFlight(0, kAll, CollectiveKind::kReceive, 30, c.age_s, 1024,
                  PeerEdge{Rank{2}, Direction::kReceive, EdgeState::kIdle, 0});
    const size_t verdicts = job.Evaluate().size();  // after a minute
    EXPECT_EQ(verdicts + job.detector.suspicions().size(), c.found) << c.step_s << " " << c.age_s;
  }
}

TEST(PatienceTest, PatienceCountsFromTheLastStepOnceOthersWait) {
  // In a job that communicates every two minutes, the others reach the operation long after the
  // rank has hung. `known`: the steps that the rank reported before.
  for (const uint64_t known : {3U, 8U}) {
    FakeJob job(6);
    job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
    job.Complete(kAll, 30);
    for (uint64_t step = 0; step < known; ++step) {
      job.state(3).steps.push_back({100 + step, 1'000'000'000});
    }
    job.state(3).step = 100 + known;
    job.Evaluate();
    for (uint32_t rank = 0; rank < 6; ++rank) job.state(rank).steps.clear();
    job.Advance(seconds(45));
    for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, 30, 8);
    EXPECT_THAT(job.Evaluate(), IsEmpty()) << "the rank has been idle for less than 50 s";
    job.ClearFlights();
    job.Advance(seconds(10));
    for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, 30, 18);
    EXPECT_THAT(job.Evaluate(), SizeIs(known < 8 ? 0 : 1));
  }
}

TEST(PatienceTest, PatienceCoversOneAndAHalfOfWhatOthersNeededInTheStep) {
  // All ranks need more than a minute for this step, and one of them a little more.
  FakeJob job(6);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
  job.Complete(kAll, 30);
  for (uint64_t step = 0; step < 8; ++step) {
    job.state(3).steps.push_back({100 + step, 1'000'000'000});
  }
  for (uint32_t rank = 0; rank < 6; ++rank) job.state(rank).step = 108;
  job.Evaluate();
  job.state(3).steps.clear();
  const auto find_after = [&](uint64_t s, double waited_s) {
    job.ClearFlights();
    for (uint32_t rank = 0; rank < 6; ++rank) {
      job.state(rank).since_step_ns = s * 1'000'000'000;
      if (rank != 3) job.AddFlight(rank, kAll, kReduce, 30, waited_s);
    }
    return job.Evaluate();
  };
  job.Advance(seconds(96));
  EXPECT_THAT(find_after(96, 21), IsEmpty());
  EXPECT_THAT(job.detector.suspicions(), SizeIs(1));
  job.Advance(seconds(30));
  EXPECT_THAT(find_after(126, 51), SizeIs(1));
}

TEST(PatienceTest, AnOperationThatAMemberHasLeftNeedsMorePatience) {
  // Rank 0 compiles, and does not notice that the operation of the pair has ended.
  constexpr uint64_t kPair = 0xb;
  for (const bool left : {false, true}) {
    FakeJob job(6);
    job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
    job.AddComm(kPair, CommunicatorRole::kTensor, {0, 1});
    job.Complete(kAll, 30);
    job.Complete(kPair, 30);
    if (left) job.CompleteOf(1, kPair, 31);
    const auto blocked_for = [&](double age_s) {
      job.ClearFlights();
      job.Advance(seconds(40));
      job.AddFlight(0, kPair, kReduce, 30, age_s);
      if (!left) job.AddFlight(1, kPair, kReduce, 30, age_s);
      for (uint32_t rank = left ? 1 : 2; rank < 6; ++rank) {
        job.AddFlight(rank, kAll, kReduce, 30, age_s);
      }
      return job.Evaluate();
    };
    job.Evaluate();
    EXPECT_THAT(blocked_for(40), SizeIs(left ? 0 : 1));
    EXPECT_THAT(blocked_for(70), SizeIs(1));
  }
}

TEST(PatienceTest, PatienceCoversTheLongestPauseSoFar) {
  FakeJob job(6);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
  job.Complete(kAll, 5);
  auto stall = [&](uint64_t seq, double age_s) {
    job.Advance(std::chrono::milliseconds(static_cast<int64_t>(age_s * 1000)));
    job.ClearFlights();
    for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, seq, age_s);
    return job.Evaluate();
  };
  job.Evaluate();
  EXPECT_THAT(stall(5, 100), SizeIs(1));
  job.ClearFlights();
  for (int i = 0; i < 5; ++i) {  // the job continues
    job.Advance(seconds(1));
    job.Evaluate();
  }
  EXPECT_GE(job.detector.longest_pause(), seconds(100));
  EXPECT_THAT(stall(6, 110), IsEmpty());
  EXPECT_THAT(stall(6, 130), SizeIs(1));
}

TEST(PatienceTest, ALostDigestDoesNotEndAPause) {
  FakeJob job = InOperation({0, 1, 2, 4, 5}, 50);
  job.Evaluate();
  job.ClearFlights();  // in one digest
  job.Evaluate();
  job.Advance(seconds(11));
  for (uint32_t rank : {0U, 1U, 2U, 4U, 5U}) job.AddFlight(rank, kAll, kReduce, 5, 61);
  job.Evaluate();
  EXPECT_EQ(job.detector.longest_pause(), seconds(0));
}

}  // namespace
}  // namespace holdfast::detect
