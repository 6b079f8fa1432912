#include "coordinator/state/restore.h"
#include "coordinator/state/prepares.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class RestoreModule : public ModuleTest {
 protected:
  void SetUp() override {
    ModuleTest::SetUp();
    job().plan.open = true;
  }
  void Request(RequestId request, uint32_t rank, std::optional<VersionId> wanted = {}) {
    RestoreRequested event;
    event.request = request;
    event.node = std::string(1, static_cast<char>('a' + rank));
    event.job = "gpt";
    event.incarnation = Incarnation{2};
    event.rank = Rank{rank};
    event.wanted = wanted;
    OnRestoreRequested(context, event);
    AdvanceRestore(context, job());
  }
  /// Answers the newest directive to the node.
  void Answer(NodeIndex node, Status outcome) {
    const uint64_t request = SentTo<PrepareShard>(node).back().request.value();
    const auto pending = TakePrepare(context, node, request);
    ASSERT_TRUE(pending.has_value());
    if (!outcome.ok()) RecordSourceFailure(context, job(), *pending, outcome);
    OnShardPrepared(context, job(), *pending, {request, outcome});
    AdvanceRestore(context, job());
  }
};

TEST_F(RestoreModule, WithoutACommitTheFirstRequestDecidesAFreshStart) {
  Request(7, 0);
  EXPECT_EQ(Added<Reply>().at(0).outcome.code(), ErrorCode::kNotFound);
  EXPECT_EQ(job().lineage().decision, Decision::kFresh);
  Request(8, 1);
  EXPECT_EQ(Added<PutLineage>().size(), 1U);
}

TEST_F(RestoreModule, TheDecisionNeedsEveryRankPrepared) {
  AddCommitted(V(1, 10), {Tier::kDisk});
  Request(7, 0);
  Answer(0, Status::Ok());
  EXPECT_EQ(job().lineage().decision, Decision::kNone);
  Answer(1, Status::Ok());
  EXPECT_EQ(job().lineage().decision, Decision::kVersion);
  EXPECT_EQ(job().lineage().restored, V(1, 10));
  ASSERT_EQ(Added<Reply>().size(), 1U);
  EXPECT_EQ(Added<Reply>()[0].version, V(1, 10));
  EXPECT_EQ(Added<Reply>()[0].tier, Tier::kDisk);
}

TEST_F(RestoreModule, TheNearestSourceIsTakenFirst) {
  VersionState& version = AddCommitted(V(1, 10), {Tier::kDisk});
  Hold(version, Rank{0}, {1, Tier::kMemory});
  AdvanceRestore(context, job());
  EXPECT_EQ(SentTo<PrepareShard>(0).at(0).source_node, "b");
  EXPECT_EQ(SentTo<PrepareShard>(0).at(0).tier, Tier::kMemory);
  Answer(0, UnavailableError("timed out"));
  Pass(std::chrono::milliseconds(200));
  AdvanceRestore(context, job());
  EXPECT_EQ(SentTo<PrepareShard>(0).at(1).source_node, "a");
  EXPECT_EQ(SentTo<PrepareShard>(0).at(1).tier, Tier::kDisk);
}

TEST_F(RestoreModule, ADamagedVersionIsReplacedByAnOlderOne) {
  AddCommitted(V(1, 10), {Tier::kDisk});
  AddCommitted(V(1, 20), {Tier::kDisk});
  Request(7, 0);
  EXPECT_EQ(job().plan.candidate, V(1, 20));
  Answer(1, DataLossError("bad chunk"));
  EXPECT_EQ(job().plan.candidate, V(1, 10));
}

TEST_F(RestoreModule, NoOlderVersionIsTakenWhileTheBarrierIsClosed) {
  AddCommitted(V(1, 10), {Tier::kDisk});
  AddCommitted(V(1, 20), {Tier::kDisk});
  const NodeIndex earlier = MakeNode("old");
  job().nodes_before.insert(earlier);
  Lose(earlier);
  Request(7, 0);
  Answer(1, DataLossError("bad chunk"));
  EXPECT_EQ(job().plan.candidate, V(1, 20));
  Pass(options.node_lease);
  AdvanceRestore(context, job());
  EXPECT_EQ(job().plan.candidate, V(1, 10));
}

TEST_F(RestoreModule, AllRanksMustNameTheSameVersion) {
  AddCommitted(V(1, 10), {Tier::kDisk});
  AddCommitted(V(1, 20), {Tier::kDisk});
  Request(7, 0, V(1, 10));
  EXPECT_EQ(job().plan.candidate, V(1, 10));
  Request(8, 1, V(1, 20));
  EXPECT_EQ(Added<Reply>().at(0).outcome.code(), ErrorCode::kInvalidArgument);
}

TEST_F(RestoreModule, AnAbandonedRequestIsNotAnswered) {
  AddCommitted(V(1, 10), {Tier::kDisk});
  Request(7, 0);
  OnRestoreAbandoned(context, {7, "gpt", Rank{0}});
  Answer(0, Status::Ok());
  Answer(1, Status::Ok());
  EXPECT_TRUE(Added<Reply>().empty());
  EXPECT_EQ(job().lineage().decision, Decision::kNone);
}

}  // namespace
}  // namespace holdfast::coord
