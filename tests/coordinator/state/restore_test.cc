#include "tests/coordinator/state/harness.h"

namespace holdfast::coord {
namespace {
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Versions 1-1 (disk and memory) and 1-2 (memory) of two ranks on a and b.
class RestoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    c.Attach("a");
    c.Attach("b");
    c.Join("a", "run-1", 0, 2);
    c.Join("b", "run-1", 1, 2);
    for (uint32_t rank : {0U, 1U}) {
      const char* node = rank == 0 ? "a" : "b";
      c.Hold(node, {H(V(1, 1), rank, Tier::kMemory), H(V(1, 1), rank, Tier::kDisk)});
    }
    for (uint32_t rank : {0U, 1U}) c.Hold(rank == 0 ? "a" : "b", {H(V(1, 2), rank, Tier::kMemory)});
    ASSERT_EQ(c.Job().committed[Tier::kMemory], V(1, 2));
  }
  PrepareShard Order() {
    auto orders = c.Sent<PrepareShard>();
    EXPECT_THAT(orders, SizeIs(1));
    return orders.empty() ? PrepareShard{} : orders[0];
  }
  Harness c;
};

TEST_F(RestoreTest, PreparesAsRanksJoinAndDecidesOnce) {
  c.Join("a", "run-2", 0, 2);
  PrepareShard first = Order();
  EXPECT_EQ(first.identity.version, V(1, 2));
  EXPECT_EQ(first.tier, Tier::kMemory);
  EXPECT_EQ(first.source_node, "a");
  EXPECT_EQ(first.source_peer_address, "unix:/a.peer");
  EXPECT_EQ(first.digest, 1020U);
  c.Answer("a", first.request, Status::Ok());
  c.Join("b", "run-2", 1, 2);
  PrepareShard second = Order();
  EXPECT_EQ(second.identity.rank, Rank{1});
  const RequestId waiter = c.RequestRestore("a", 2, 0);
  EXPECT_FALSE(c.ReplyTo(waiter).has_value());
  c.Answer("b", second.request, Status::Ok());
  ASSERT_TRUE(c.ReplyTo(waiter).has_value());
  EXPECT_EQ(c.ReplyTo(waiter)->version, V(1, 2));
  EXPECT_EQ(c.stored.lineages.at({"gpt", Incarnation{2}}).restored, V(1, 2));
  EXPECT_EQ(c.Sent<JobState>().at(0).restore, V(1, 2));
  const RequestId late = c.RequestRestore("b", 2, 1);
  EXPECT_EQ(c.ReplyTo(late)->version, V(1, 2));
  const RequestId other = c.RequestRestore("b", 2, 1, V(1, 1));
  EXPECT_EQ(c.ReplyTo(other)->outcome.code(), ErrorCode::kFailedPrecondition);
}

TEST_F(RestoreTest, ANodeGetsTheJobStateBeforeItPreparesAShard) {
  c.Attach("x");
  c.Join("x", "run-2", 0, 2);
  std::vector<std::string> sent;
  for (const Effect& effect : c.effects) {
    const auto* send = std::get_if<Send>(&effect);
    if (send == nullptr || send->attach != c.AttachOf("x")) continue;
    const auto* state = std::get_if<JobState>(&send->directive);
    if (state != nullptr) sent.push_back("incarnation " + std::to_string(state->incarnation.value));
    if (std::holds_alternative<PrepareShard>(send->directive)) sent.emplace_back("prepare");
  }
  EXPECT_THAT(sent, ElementsAre("incarnation 2", "prepare"));
}

TEST_F(RestoreTest, NothingIsDecidedBeforeARankRequestsARestore) {
  c.Join("a", "run-2", 0, 2);
  c.Answer("a", Order().request, Status::Ok());
  c.Join("b", "run-2", 1, 2);
  c.Answer("b", Order().request, Status::Ok());
  EXPECT_EQ(c.stored.lineages.at({"gpt", Incarnation{2}}).decision, Decision::kNone);
  const RequestId named = c.RequestRestore("a", 2, 0, V(1, 1));
  EXPECT_FALSE(c.ReplyTo(named).has_value());
  ASSERT_THAT(c.Sent<PrepareShard>(), SizeIs(2));
  EXPECT_EQ(c.Sent<PrepareShard>()[0].identity.version, V(1, 1));
  Reply other = *c.ReplyTo(c.RequestRestore("b", 2, 1));
  EXPECT_EQ(other.outcome.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(other.outcome.message(), HasSubstr("1-1"));
}

TEST_F(RestoreTest, ADamagedReplicaIsReplacedByTheNextSourceThenTheOlderVersion) {
  c.Hold("a", {H(V(1, 2), 0, Tier::kDisk)});
  c.Join("a", "run-2", 0, 2);
  c.Answer("a", Order().request, DataLossError("chunk 3"));
  PrepareShard disk = Order();
  EXPECT_EQ(disk.identity.version, V(1, 2));
  EXPECT_EQ(disk.tier, Tier::kDisk);
  c.Answer("a", disk.request, DataLossError("chunk 4"));
  PrepareShard older = Order();
  EXPECT_EQ(older.identity.version, V(1, 1));
  EXPECT_EQ(older.tier, Tier::kMemory);
  c.Answer("a", older.request, NotFoundError("freed since"));
  older = Order();
  EXPECT_EQ(older.identity.version, V(1, 1));
  EXPECT_EQ(older.tier, Tier::kDisk);
  c.Answer("a", older.request, Status::Ok());
  c.Join("b", "run-2", 1, 2);
  older = Order();
  EXPECT_EQ(older.identity.version, V(1, 1));
  const RequestId waiter = c.RequestRestore("a", 2, 0);
  c.Answer("b", older.request, Status::Ok());
  ASSERT_TRUE(c.ReplyTo(waiter).has_value());
  EXPECT_EQ(c.ReplyTo(waiter)->version, V(1, 1));
  EXPECT_EQ(c.ReplyTo(waiter)->tier, Tier::kDisk);
}

TEST_F(RestoreTest, ADamagedReplicaIsNamedAndCountsAgainOnlyIfReportedAgain) {
  c.Join("a", "run-2", 0, 2);
  c.Answer("a", Order().request, DataLossError("chunk 3 differs"));
  auto versions = c.state().Versions("gpt").value();
  EXPECT_EQ(versions[0].version, V(1, 2));
  EXPECT_FALSE(versions[0].restorable);
  EXPECT_THAT(versions[0].why_not,
              HasSubstr("gpt/1-2/rank-0 at memory on node a: chunk 3 differs"));
  EXPECT_EQ(c.Job().restorable, V(1, 1));
  // The same replica in an inventory does not count again, but a new report does.
  c.Attach("a", {H(V(1, 1), 0, Tier::kDisk), H(V(1, 2), 0, Tier::kMemory)});
  EXPECT_EQ(c.Job().restorable, V(1, 1));
  c.Hold("a", {H(V(1, 2), 0, Tier::kMemory)});
  EXPECT_EQ(c.Job().restorable, V(1, 2));
}

TEST_F(RestoreTest, TransientFailuresAreTriedAgain) {
  c.Join("a", "run-2", 0, 2);
  for (int attempt = 0; attempt < 2; ++attempt) {
    c.Answer("a", Order().request, UnavailableError("busy"));
    EXPECT_THAT(c.Sent<PrepareShard>(), IsEmpty());
    c.Pass(milliseconds(250));
    EXPECT_EQ(Order().identity.version, V(1, 2));
  }
  c.Answer("a", Order().request, UnavailableError("busy"));
  c.Pass(milliseconds(250));
  EXPECT_EQ(Order().identity.version, V(1, 1));
}

/// Each attempt to reach a node whose packets are lost takes seconds. Its memory and its disk are
/// not waited for one after the other, and older versions are read from other nodes first.
TEST_F(RestoreTest, ATimeoutCountsForAllReplicasOfTheNode) {
  c.Hold("a", {H(V(1, 2), 0, Tier::kDisk)});
  c.Hold("b", {H(V(1, 1), 0, Tier::kDisk)});
  c.Attach("spare");
  c.Join("spare", "run-2", 0, 2);
  for (int attempt = 0; attempt < 3; ++attempt) {
    const PrepareShard order = Order();
    EXPECT_EQ(order.identity.version, V(1, 2));
    EXPECT_EQ(order.source_node, "a");
    c.Pass(milliseconds(2'100));
    for (const char* node : {"a", "b", "spare"}) c.Hold(node, {});  // a heartbeat
    c.Answer("spare", order.request, UnavailableError("connecting timed out"));
    c.Pass(milliseconds(250));
  }
  PrepareShard order = Order();
  EXPECT_EQ(order.identity.version, V(1, 1));
  EXPECT_EQ(order.source_node, "b");
  // If no other node has the shard, the node is asked again.
  c.Lose("b");
  order = Order();
  EXPECT_EQ(order.identity.version, V(1, 1));
  EXPECT_EQ(order.source_node, "a");
}

TEST_F(RestoreTest, AMovedRankReadsFromAnotherNode) {
  c.Attach("spare");
  c.Join("spare", "run-2", 0, 2);
  PrepareShard order = Order();
  EXPECT_EQ(order.source_node, "a");
  EXPECT_EQ(order.tier, Tier::kMemory);
  // The source is lost during the read: another replica is used.
  c.Hold("b", {H(V(1, 2), 0, Tier::kMemory)});
  c.Lose("a");
  order = Order();
  EXPECT_EQ(order.source_node, "b");
}

TEST_F(RestoreTest, FreshOnlyIfNothingWasEverCommitted) {
  Harness fresh;
  fresh.Attach("a");
  fresh.Join("a", "run-1", 0, 1);
  Reply reply = *fresh.ReplyTo(fresh.RequestRestore("a", 1, 0));
  EXPECT_EQ(reply.outcome.code(), ErrorCode::kNotFound);
  EXPECT_EQ(fresh.stored.lineages.at({"gpt", Incarnation{1}}).decision, Decision::kFresh);
  fresh.Hold("a", {H(V(1, 1), 0, Tier::kMemory, 1)});
  const RequestId rollback = fresh.RequestRestore("a", 1, 0);
  EXPECT_EQ(fresh.ReplyTo(rollback)->version, V(1, 1)) << "it has trained since";

  // A job whose committed versions are lost does not start fresh.
  c.Attach("a", {}, 2);
  c.Join("a", "run-2", 0, 2);
  c.Join("b", "run-2", 1, 2);
  Reply lost = *c.ReplyTo(c.RequestRestore("a", 2, 0));
  EXPECT_EQ(lost.outcome.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(lost.outcome.message(),
              HasSubstr("version 1-2 has no replica of rank 0 (last on a)"));
  EXPECT_EQ(c.stored.lineages.at({"gpt", Incarnation{2}}).decision, Decision::kNone);
}

TEST_F(RestoreTest, ARestartedCoordinatorWaitsForKnownNodes) {
  c.Restart();
  c.Attach("b",
           {H(V(1, 1), 0, Tier::kDisk), H(V(1, 1), 1, Tier::kDisk), H(V(1, 2), 1, Tier::kMemory)});
  c.Join("b", "run-2", 0, 2);
  c.Join("b", "run-2", 1, 2);
  const RequestId waiter = c.RequestRestore("b", 2, 0);
  // 1-1 is restorable, but a may have 1-2.
  EXPECT_EQ(c.stored.lineages.at({"gpt", Incarnation{2}}).decision, Decision::kNone);
  c.Attach("a", {H(V(1, 2), 0, Tier::kMemory)});
  ASSERT_THAT(c.Sent<PrepareShard>(), SizeIs(2));
  EXPECT_EQ(c.Sent<PrepareShard>()[0].identity.version, V(1, 2));
  EXPECT_EQ(c.Sent<PrepareShard>()[0].source_node, "a");
  auto orders = c.Sent<PrepareShard>();
  for (const PrepareShard& order : orders) c.Answer("b", order.request, Status::Ok());
  EXPECT_EQ(c.ReplyTo(waiter)->version, V(1, 2));
}

TEST_F(RestoreTest, AfterALeaseTheNewestRestorableVersionIsTaken) {
  c.Restart();
  c.Attach("b",
           {H(V(1, 1), 0, Tier::kDisk), H(V(1, 1), 1, Tier::kDisk), H(V(1, 2), 1, Tier::kMemory)});
  c.Join("b", "run-2", 0, 2);
  auto first = c.Sent<PrepareShard>();
  c.Join("b", "run-2", 1, 2);
  auto second = c.Sent<PrepareShard>();
  const RequestId waiter = c.RequestRestore("b", 2, 0);
  ASSERT_THAT(first, SizeIs(1));
  ASSERT_THAT(second, SizeIs(1));
  c.Answer("b", first[0].request, Status::Ok());
  c.Answer("b", second[0].request, Status::Ok());
  EXPECT_FALSE(c.ReplyTo(waiter).has_value());
  for (int i = 0; i < 4; ++i) {
    c.Apply(c.NewReport("b"));
    c.Pass(milliseconds(1000));
    if (c.ReplyTo(waiter)) break;
  }
  ASSERT_TRUE(c.ReplyTo(waiter).has_value());
  EXPECT_EQ(c.ReplyTo(waiter)->version, V(1, 1));
}

TEST_F(RestoreTest, AnotherWorldIsRefusedWithBothSizes) {
  c.Join("a", "run-2", 0, 4);
  c.Join("a", "run-2", 1, 4);
  c.Join("b", "run-2", 2, 4);
  c.Join("b", "run-2", 3, 4);
  EXPECT_THAT(c.Sent<PrepareShard>(), IsEmpty());
  Reply reply = *c.ReplyTo(c.RequestRestore("a", 2, 0));
  EXPECT_EQ(reply.outcome.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(reply.outcome.message(), HasSubstr("saved by 2 ranks, this run has 4"));
  const auto refused = std::find_if(c.effects.begin(), c.effects.end(), [](const Effect& effect) {
    return std::holds_alternative<RestoreRefused>(effect);
  });
  ASSERT_NE(refused, c.effects.end());
  EXPECT_EQ(std::get<RestoreRefused>(*refused).incarnation, Incarnation{2});
  EXPECT_EQ(std::get<RestoreRefused>(*refused).why.message(), reply.outcome.message());
}

TEST_F(RestoreTest, ARestartFromAnOlderStepAbandonsNewerVersions) {
  c.Hold("a", {H(V(1, 2), 0, Tier::kDisk)});
  c.Hold("b", {H(V(1, 2), 1, Tier::kDisk)});
  c.Join("a", "run-2", 0, 2);
  c.Join("b", "run-2", 1, 2);
  c.RequestRestore("a", 2, 0, V(1, 1));
  auto orders = c.Sent<PrepareShard>();
  ASSERT_THAT(orders, SizeIs(2));
  c.Answer("a", orders[0].request, Status::Ok());
  c.Answer("b", orders[1].request, Status::Ok());
  EXPECT_EQ(c.Job().committed[Tier::kMemory], V(1, 1));
  auto versions = c.state().Versions("gpt").value();
  ASSERT_EQ(versions[0].version, V(1, 2));
  EXPECT_TRUE(versions[0].abandoned);
  EXPECT_FALSE(versions[0].restorable);
  // The next incarnation does not restore the abandoned version.
  c.Join("a", "run-3", 0, 2);
  EXPECT_EQ(Order().identity.version, V(1, 1));
  Reply named = *c.ReplyTo([&] {
    c.Join("b", "run-3", 1, 2);
    return c.RequestRestore("a", 3, 0, V(1, 2));
  }());
  EXPECT_EQ(named.outcome.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(named.outcome.message(), HasSubstr("abandoned"));
}

TEST_F(RestoreTest, TheRestoredVersionIsKeptUntilAVersionThatIsAsSafeReplacesIt) {
  StateOptions options;
  options.keep_last = 1;
  Harness k(options);
  k.Attach("a");
  k.Join("a", "run-1", 0, 1);
  k.Hold("a", {H(V(1, 1), 0, Tier::kDisk, 1)});
  k.Join("a", "run-2", 0, 1);
  auto order = k.Sent<PrepareShard>();
  ASSERT_THAT(order, SizeIs(1));
  k.Answer("a", order[0].request, Status::Ok());
  const RequestId waiter = k.RequestRestore("a", 2, 0);
  ASSERT_EQ(k.ReplyTo(waiter)->version, V(1, 1));
  EXPECT_EQ(k.ReplyTo(waiter)->tier, Tier::kDisk);
  k.Hold("a", {H(V(2, 2), 0, Tier::kMemory, 1)});
  EXPECT_THAT(k.Sent<RemoveVersion>(), IsEmpty());
  k.Hold("a", {H(V(2, 2), 0, Tier::kDisk, 1)});
  EXPECT_THAT(k.Sent<RemoveVersion>(), ElementsAre(RemoveVersion{"gpt", V(1, 1), Tier::kDisk}));
}

TEST_F(RestoreTest, ANewIncarnationFencesTheWaitersOfTheOlderOne) {
  c.Join("a", "run-2", 0, 2);
  const RequestId waiter = c.RequestRestore("a", 2, 0);
  c.Join("a", "run-3", 0, 2);
  EXPECT_EQ(c.ReplyTo(waiter)->outcome.code(), ErrorCode::kFenced);
  EXPECT_EQ(c.ReplyTo(c.RequestRestore("a", 2, 0))->outcome.code(), ErrorCode::kFenced);
}

TEST_F(RestoreTest, TrainingWithoutARestoreRequestPreparesNothing) {
  c.Join("a", "run-2", 0, 2);
  c.Join("b", "run-2", 1, 2);
  c.Hold("a", {H(V(2, 1), 0, Tier::kMemory)});
  c.Hold("b", {H(V(2, 1), 1, Tier::kMemory)});
  EXPECT_THAT(c.Sent<PrepareShard>(), IsEmpty());
  c.Hold("a", {H(V(2, 2), 0, Tier::kMemory)});
  c.Hold("b", {H(V(2, 2), 1, Tier::kMemory)});
  EXPECT_THAT(c.Commits(Tier::kMemory), ElementsAre(V(2, 2)));
  EXPECT_THAT(c.Sent<PrepareShard>(), IsEmpty());
}

}  // namespace
}  // namespace holdfast::coord
