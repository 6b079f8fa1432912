#include "tests/coordinator/state/harness.h"

// Restarts with the same run ID, by launchers that reuse it.

namespace holdfast::coord {
namespace {
class RejoinTest : public testing::Test {
 protected:
  /// What the agent reports about the process that joins.
  enum class Start { kUnknown, kNew, kReturn };
  RejoinTest() {
    h_.Attach("n0");
    h_.Attach("n1");
  }

  Reply Join(uint32_t rank, Start start, uint64_t before = 0, uint32_t world = 2) {
    request_ = 1000 + ++count_;
    RankJoined event{{"gpt", "slurm-7", Rank{rank}, world, 7, 0, {}}};
    event.request = request_;
    event.node = Node(rank);
    event.agent_start = 1;
    event.may_have_joined = start == Start::kUnknown;
    if (start == Start::kReturn) event.joined_before = Incarnation{before};
    h_.Apply(event);
    Reply waiting;
    waiting.outcome = UnavailableError("no reply yet");
    return h_.ReplyTo(request_).value_or(waiting);
  }
  static std::string Node(uint32_t rank) { return "n" + std::to_string(rank); }
  /// Makes the rank's node report `running` as its connected trainers.
  void Running(uint32_t rank, std::vector<LocalRank> running) {
    NodeReported report = h_.NewReport(Node(rank));
    report.ranks = std::move(running);
    h_.Apply(report);
  }
  void Train(uint64_t incarnation, uint64_t step) {
    h_.Hold("n0", {H(V(incarnation, step), 0, Tier::kMemory)});
    h_.Hold("n1", {H(V(incarnation, step), 1, Tier::kMemory)});
  }
  std::vector<LocalRank> One(uint32_t rank, uint64_t incarnation) {
    return {{"gpt", Incarnation{incarnation}, Rank{rank}}};
  }
  uint64_t Incarnation_() { return h_.Job().incarnation.value; }

  Harness h_;
  RequestId request_ = 0;
  uint64_t count_ = 0;
};

TEST_F(RejoinTest, ARestartIsANewIncarnationForAllItsRanks) {
  EXPECT_EQ(Join(0, Start::kNew).incarnation.value, 1U);
  EXPECT_EQ(Join(1, Start::kNew).incarnation.value, 1U);
  Train(1, 5);
  EXPECT_EQ(Join(1, Start::kNew).incarnation.value, 2U);
  EXPECT_EQ(Join(0, Start::kNew).incarnation.value, 2U) << "all end in the same one";
  const RequestId first = h_.RequestReshard("n0", 2, 0);
  ASSERT_TRUE(h_.ReplyTo(first).has_value());
  EXPECT_EQ(h_.ReplyTo(first)->version, V(1, 5)) << "not a fresh start";
  Train(2, 6);
  EXPECT_THAT(h_.Stored(), testing::Contains(V(2, 6)));
  EXPECT_EQ(Join(0, Start::kNew).incarnation.value, 3U) << "once for each attempt";
  EXPECT_EQ(Join(1, Start::kNew).incarnation.value, 3U);
}

TEST_F(RejoinTest, AReconnectIsNoRestart) {
  Join(0, Start::kNew);
  Join(1, Start::kNew);
  Train(1, 5);
  EXPECT_EQ(Join(0, Start::kReturn, 1).incarnation.value, 1U);
  EXPECT_EQ(Join(1, Start::kUnknown).incarnation.value, 1U) << "an older agent";
  h_.Restart();
  h_.Attach("n0", {H(V(1, 5), 0, Tier::kMemory)});
  h_.Attach("n1", {H(V(1, 5), 1, Tier::kMemory)});
  EXPECT_EQ(Join(0, Start::kReturn, 1).incarnation.value, 1U);
}

TEST_F(RejoinTest, AfterACoordinatorRestartTheShardsShowThatARankRestarts) {
  Join(0, Start::kNew);
  Join(1, Start::kNew);
  Train(1, 5);
  h_.Restart();
  h_.Attach("n0", {H(V(1, 5), 0, Tier::kMemory)});
  h_.Attach("n1", {H(V(1, 5), 1, Tier::kMemory)});
  EXPECT_EQ(Join(0, Start::kNew).incarnation.value, 2U);
  EXPECT_EQ(Join(1, Start::kNew).incarnation.value, 2U);
}

TEST_F(RejoinTest, WithoutSavedStepsNoNewIncarnationIsOpened) {
  Join(0, Start::kNew);
  Join(1, Start::kNew);
  EXPECT_EQ(Join(0, Start::kNew).incarnation.value, 1U);
}

TEST_F(RejoinTest, AProcessOfThePreviousStartIsFenced) {
  Join(0, Start::kNew);
  Join(1, Start::kNew);
  Train(1, 5);
  ASSERT_EQ(Join(0, Start::kNew).incarnation.value, 2U);
  EXPECT_EQ(Join(1, Start::kReturn, 1).outcome.code(), ErrorCode::kFenced);
}

// One process may take part in several starts of a job, one after the other.
TEST_F(RejoinTest, AProcessOfAnotherRunJoinsAsANewOne) {
  Join(0, Start::kNew);
  Join(1, Start::kNew);
  Train(1, 5);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    RankJoined next{{"gpt", "slurm-8", Rank{rank}, 2, 7, 0, Incarnation{1}}};
    next.request = 70 + rank;
    next.node = Node(rank);
    next.agent_start = 1;
    h_.Apply(next);
    ASSERT_TRUE(h_.ReplyTo(70 + rank).has_value());
    EXPECT_EQ(h_.ReplyTo(70 + rank)->incarnation.value, 2U)
        << h_.ReplyTo(70 + rank)->outcome.ToString();
  }
}

TEST_F(RejoinTest, ARestartWaitsForRanksThatStillRun) {
  Join(0, Start::kNew);
  Join(1, Start::kNew);
  Train(1, 5);
  Running(0, One(0, 1));
  Running(1, One(1, 1));
  EXPECT_EQ(Join(0, Start::kNew).outcome.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(Incarnation_(), 1U) << "rank 1 is not fenced";
  const RequestId waiting = request_;
  Running(1, {});  // rank 1 has ended
  ASSERT_TRUE(h_.ReplyTo(waiting).has_value());
  EXPECT_EQ(h_.ReplyTo(waiting)->incarnation.value, 2U);
  EXPECT_EQ(Join(1, Start::kNew).incarnation.value, 2U);
}

TEST_F(RejoinTest, ARestartIsRefusedWhileRanksKeepRunning) {
  Join(0, Start::kNew);
  Join(1, Start::kNew);
  Train(1, 5);
  Running(1, One(1, 1));
  Join(0, Start::kNew);
  const RequestId waiting = request_;
  h_.Pass(std::chrono::milliseconds(1000));
  Running(0, {});
  Running(1, One(1, 1));
  EXPECT_FALSE(h_.ReplyTo(waiting).has_value());
  h_.Pass(std::chrono::milliseconds(2900));
  Running(0, {});
  Running(1, One(1, 1));
  h_.Pass(std::chrono::milliseconds(200));
  ASSERT_TRUE(h_.ReplyTo(waiting).has_value());
  const Status why = h_.ReplyTo(waiting)->outcome;
  EXPECT_EQ(why.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(why.message(), testing::HasSubstr("rank 1 on node n1"));
  EXPECT_THAT(why.message(), testing::HasSubstr("HOLDFAST_RUN_ID"));
  EXPECT_EQ(Incarnation_(), 1U);
  Train(1, 6);
  EXPECT_THAT(h_.Stored(), testing::Contains(V(1, 6))) << "the run continues";
}

TEST_F(RejoinTest, AnElasticRestartMayHaveAnotherWorld) {
  Join(0, Start::kNew);
  Join(1, Start::kNew);
  Train(1, 5);
  EXPECT_EQ(Join(0, Start::kNew, 0, 1).incarnation.value, 2U);
  EXPECT_EQ(h_.Job().world, 1U);
}

}  // namespace
}  // namespace holdfast::coord
