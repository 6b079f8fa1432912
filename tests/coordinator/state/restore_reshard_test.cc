#include "tests/coordinator/state/harness.h"

namespace holdfast::coord {
namespace {
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Versions 1-1 (disk and memory) and 1-2 (memory) of two ranks on a and b, both attached.
class RestoreReshardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    c.Attach("a");
    c.Attach("b");
    c.Join("a", "run-1", 0, 2);
    c.Join("b", "run-1", 1, 2);
    for (uint32_t step : {1U, 2U}) {
      for (uint32_t rank : {0U, 1U}) {
        std::vector<StoredReplica> has = {H(V(1, step), rank, Tier::kMemory)};
        if (step == 1) has.push_back(H(V(1, step), rank, Tier::kDisk));
        c.Hold(rank == 0 ? "a" : "b", has);
      }
    }
    ASSERT_EQ(c.Job().committed[Tier::kMemory], V(1, 2));
  }
  void Start(const std::string& run, uint32_t world) {
    for (uint32_t rank = 0; rank < world; ++rank) {
      ASSERT_TRUE(c.Join(rank % 2 == 0 ? "a" : "b", run, rank, world).outcome.ok());
    }
  }
  /// The reply to `waiter` by the last event.
  Reply Answer(RequestId waiter) {
    EXPECT_TRUE(c.ReplyTo(waiter).has_value());
    return c.ReplyTo(waiter).value_or(Reply{});
  }
  Harness c;
};

TEST_F(RestoreReshardTest, AnotherWorldGetsTheNewestVersionWithoutPreparation) {
  ASSERT_NO_FATAL_FAILURE(Start("run-2", 3));
  const Reply reply = Answer(c.RequestReshard("a", 2, 0));
  EXPECT_TRUE(reply.outcome.ok()) << reply.outcome.ToString();
  EXPECT_EQ(reply.version, V(1, 2));
  EXPECT_EQ(reply.world, 2U);
  EXPECT_EQ(reply.tier, Tier::kMemory);
  EXPECT_THAT(c.Sent<PrepareShard>(), IsEmpty());
  EXPECT_EQ(c.stored.lineages.at({"gpt", Incarnation{2}}).restored, V(1, 2));
  EXPECT_EQ(Answer(c.RequestReshard("b", 2, 2)).version, V(1, 2));
  // No rank has its own shard of another world: such a request is refused.
  const Reply own = Answer(c.RequestRestore("b", 2, 1));
  EXPECT_EQ(own.outcome.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(own.outcome.message(), HasSubstr("saved by 2 ranks, this run has 3"));
}

TEST_F(RestoreReshardTest, InAnotherWorldReshardsAreAnsweredAndOtherRestoresAreRefused) {
  c.Lose("b");  // the recovery barrier is closed: both wait
  ASSERT_TRUE(c.Join("a", "run-2", 0, 3).outcome.ok());
  const RequestId own = c.RequestRestore("a", 2, 0);
  const RequestId reshard = c.RequestReshard("a", 2, 0);
  EXPECT_FALSE(c.ReplyTo(own).has_value());
  EXPECT_FALSE(c.ReplyTo(reshard).has_value());
  c.Attach("b", {H(V(1, 2), 1, Tier::kMemory), H(V(1, 1), 1, Tier::kDisk)});
  EXPECT_FALSE(c.ReplyTo(own).has_value());
  ASSERT_TRUE(c.Join("b", "run-2", 1, 3).outcome.ok());
  c.Join("a", "run-2", 2, 3);
  EXPECT_EQ(Answer(own).outcome.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Answer(reshard).version, V(1, 2));
}

TEST_F(RestoreReshardTest, AnOlderVersionIsTakenOnlyIfTheNewerCannotBeRestored) {
  c.Lose("b");
  ASSERT_TRUE(c.Join("a", "run-2", 0, 1).outcome.ok());
  const RequestId waiter = c.RequestReshard("a", 2, 0);
  EXPECT_FALSE(c.ReplyTo(waiter).has_value());
  // b attaches again without its memory.
  c.Attach("b", {H(V(1, 1), 1, Tier::kDisk)}, /*start=*/2);
  const Reply reply = Answer(waiter);
  EXPECT_EQ(reply.version, V(1, 1));
  EXPECT_EQ(reply.tier, Tier::kDisk);
}

TEST_F(RestoreReshardTest, ANamedVersionIsTakenOrRefused) {
  ASSERT_NO_FATAL_FAILURE(Start("run-2", 1));
  const Reply missing = Answer(c.RequestReshard("a", 2, 0, V(1, 7)));
  EXPECT_EQ(missing.outcome.code(), ErrorCode::kNotFound);
  EXPECT_EQ(Answer(c.RequestReshard("a", 2, 0, V(1, 1))).version, V(1, 1));
  EXPECT_EQ(Answer(c.RequestReshard("a", 2, 0)).version, V(1, 1));
  const Reply other = Answer(c.RequestReshard("a", 2, 0, V(1, 2)));
  EXPECT_EQ(other.outcome.code(), ErrorCode::kFailedPrecondition);
}

TEST_F(RestoreReshardTest, AFreshJobHasNothingToRestore) {
  Harness fresh;
  fresh.Attach("a");
  fresh.Join("a", "run-1", 0, 1);
  const RequestId waiter = fresh.RequestReshard("a", 1, 0);
  ASSERT_TRUE(fresh.ReplyTo(waiter).has_value());
  EXPECT_EQ(fresh.ReplyTo(waiter)->outcome.code(), ErrorCode::kNotFound);
}

TEST_F(RestoreReshardTest, AfterTheDecisionReshardsWaitForANodeThatIsAway) {
  ASSERT_NO_FATAL_FAILURE(Start("run-2", 3));
  ASSERT_EQ(Answer(c.RequestReshard("a", 2, 0)).version, V(1, 2));
  c.Lose("b");
  const RequestId waiter = c.RequestReshard("a", 2, 0);
  EXPECT_FALSE(c.ReplyTo(waiter).has_value());
  c.Pass(milliseconds(2000));
  c.Hold("a", {});
  EXPECT_FALSE(c.ReplyTo(waiter).has_value());
  c.Pass(milliseconds(1500));
  EXPECT_EQ(Answer(waiter).outcome.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(Answer(waiter).outcome.message(), HasSubstr("rank 1 (last on b)"));
}

TEST_F(RestoreReshardTest, ThePlanListsAllReplicas) {
  const auto plan = c.state().PlanAllReplicas("gpt", V(1, 1));
  ASSERT_TRUE(plan.has_value()) << plan.error().ToString();
  EXPECT_EQ(plan->world, 2U);
  std::vector<std::string> replicas;
  for (const ReplicaLocation& source : plan->sources) {
    replicas.push_back(source.node + std::to_string(source.rank.value) +
                       std::string(ToString(source.tier)));
  }
  EXPECT_THAT(replicas, ElementsAre("a0memory", "a0disk", "b1memory", "b1disk"));
  EXPECT_THAT(c.state().PlanAllReplicas("gpt", V(1, 2))->sources, SizeIs(2));
  EXPECT_EQ(c.state().PlanAllReplicas("gpt", V(1, 9)).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(c.state().PlanAllReplicas("other", V(1, 1)).error().code(), ErrorCode::kNotFound);
  c.Lose("b");
  EXPECT_EQ(c.state().PlanAllReplicas("gpt", V(1, 2)).error().code(),
            ErrorCode::kFailedPrecondition);
}

TEST_F(RestoreReshardTest, VersionsCommitByTheirOwnWorldAndTheOldOnesStayUntilReplaced) {
  ASSERT_NO_FATAL_FAILURE(Start("run-2", 3));
  ASSERT_EQ(Answer(c.RequestReshard("a", 2, 0)).version, V(1, 2));
  const auto hold = [&](uint32_t rank, Tier tier) {
    c.Hold(rank % 2 == 0 ? "a" : "b", {H(V(2, 3), rank, tier, /*world=*/3)});
  };
  hold(0, Tier::kMemory);
  hold(1, Tier::kMemory);
  EXPECT_EQ(c.Job().committed[Tier::kMemory], V(1, 2));
  hold(2, Tier::kMemory);
  EXPECT_EQ(c.Job().committed[Tier::kMemory], V(2, 3));
  EXPECT_EQ(c.Job().restorable, V(2, 3));
  EXPECT_THAT(c.Stored(), ElementsAre(V(1, 1), V(1, 2), V(2, 3)));
  // Without the third rank's shard, the newest restorable version is of two ranks again.
  c.ReportRemoved("a", V(2, 3), 2, Tier::kMemory);
  EXPECT_EQ(c.Job().restorable, V(1, 1));
  ASSERT_NO_FATAL_FAILURE(Start("run-3", 4));
  const Reply back = Answer(c.RequestReshard("b", 3, 3));
  EXPECT_EQ(back.version, V(1, 1));
  EXPECT_EQ(back.world, 2U);
}

}  // namespace
}  // namespace holdfast::coord
