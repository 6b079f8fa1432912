#include "coordinator/state/join.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class JoinModule : public ModuleTest {
 protected:
  /// What the agent reports about the process that joins.
  enum class Start { kUnknown, kNew };
  Reply Join(uint32_t rank, const std::string& run, Start start = Start::kNew, uint32_t world = 2) {
    effects.clear();
    RankJoined event;
    event.request = 7;
    event.node = std::string(1, static_cast<char>('a' + rank));
    event.agent_start = 1;
    event.job = "gpt";
    event.run_id = run;
    event.rank = Rank{rank};
    event.world = world;
    event.may_have_joined = start == Start::kUnknown;
    OnRankJoined(context, event);
    const std::vector<Reply> replies = Added<Reply>();
    return replies.empty() ? Reply{} : replies.back();
  }
};

TEST_F(JoinModule, ANewRunIdOpensTheNextIncarnationAndOldOnesAreFenced) {
  EXPECT_EQ(Join(0, "run-2").incarnation, Incarnation{2});
  EXPECT_EQ(Join(0, "run-3").incarnation, Incarnation{3});
  EXPECT_EQ(Added<PutLineage>().size(), 1U);
  EXPECT_EQ(Join(1, "run-2").outcome.code(), ErrorCode::kFenced);
  EXPECT_EQ(Join(1, "run-3").incarnation, Incarnation{3});
}

TEST_F(JoinModule, TheNextIncarnationIsAboveAllThatNodesReported) {
  cluster.nodes[1].reported["gpt"] = Incarnation{9};
  EXPECT_EQ(Join(0, "run-3").incarnation, Incarnation{10});
}

TEST_F(JoinModule, AnIncarnationAbortsWhatIsPendingAndRefusesOldWaiters) {
  VersionState& pending = Add(V(2, 10));
  job().plan.Wait({9, Rank{0}, context.at.now});
  Join(0, "run-3");
  EXPECT_EQ(pending.phase, Phase::kAborted);
  ASSERT_EQ(Added<Reply>().size(), 2U);
  EXPECT_EQ(Added<Reply>()[0].request, 9U);
  EXPECT_EQ(Added<Reply>()[0].outcome.code(), ErrorCode::kFenced);
}

TEST_F(JoinModule, ANewProcessOfARunThatSavedWaitsForTheOldOnes) {
  job().newest_seen = Step{10};
  job().connected[Rank{1}] = 1;
  EXPECT_EQ(Join(0, "run-2").request, 0U);
  ASSERT_EQ(job().waiting_joins.size(), 1U);
  job().connected.clear();
  AdvanceJoins(context, job());
  ASSERT_EQ(Added<Reply>().size(), 1U);
  EXPECT_EQ(Added<Reply>()[0].incarnation, Incarnation{3});
}

TEST_F(JoinModule, TheWaitEndsWithARefusal) {
  job().newest_seen = Step{10};
  job().connected[Rank{1}] = 1;
  Join(0, "run-2");
  Pass(options.rejoin_wait);
  AdvanceJoins(context, job());
  ASSERT_EQ(Added<Reply>().size(), 1U);
  EXPECT_THAT(Added<Reply>()[0].outcome.message(), ::testing::HasSubstr("rank 1 on node b"));
  EXPECT_TRUE(job().waiting_joins.empty());
}

TEST_F(JoinModule, AProcessThatReturnsKeepsItsIncarnation) {
  job().newest_seen = Step{10};
  EXPECT_EQ(Join(0, "run-2", Start::kUnknown).incarnation, Incarnation{2});
}

TEST_F(JoinModule, WorldAndNodeMustFit) {
  EXPECT_EQ(Join(0, "run-2", Start::kNew, 3).outcome.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Join(1, "run-2", Start::kNew, 1).outcome.code(), ErrorCode::kInvalidArgument);
  Lose(0);
  EXPECT_EQ(Join(0, "run-2").outcome.code(), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace holdfast::coord
