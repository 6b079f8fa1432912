// Repair of missing redundancy: which shards are repaired, from which source, on which node, and
// when a failed repair is tried again.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tests/coordinator/state/harness.h"

namespace holdfast::coord {
namespace {
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

StateOptions PatientOptions() {
  StateOptions options = GroupsOf(4, 1);
  options.node_lease = std::chrono::hours(10);
  return options;
}

/// Nodes a, b, c, d with ranks and parity 0, 1, 2, 3, in one group that survives the loss of one
/// node.
class RepairTest : public ::testing::Test {
 protected:
  RepairTest() : c(PatientOptions()) { c.peers = true; }
  void SetUp() override {
    for (const std::string& node : nodes) c.Attach(node);
    Run("run-1");
  }
  void Run(const std::string& run) {
    for (uint32_t i = 0; i < 4; ++i) c.Join(nodes[i], run, i, 4);
  }
  StoredReplica Data(VersionId version, uint32_t i, Tier tier) { return H(version, i, tier, 4); }
  StoredReplica Parity(VersionId version, uint32_t i, Tier tier) { return P(version, i, tier, 4); }
  void HoldData(VersionId version, Tier tier) {
    for (uint32_t i = 0; i < 4; ++i) c.Hold(nodes[i], {Data(version, i, tier)});
  }
  void HoldParity(VersionId version, Tier tier) {
    for (uint32_t i = 0; i < 4; ++i) c.Hold(nodes[i], {Parity(version, i, tier)});
  }
  /// Commits the version at peer with all data and parity in memory.
  void CommitPeer(VersionId version) {
    HoldData(version, Tier::kMemory);
    HoldParity(version, Tier::kMemory);
  }
  /// Leaves 1-1 and 1-2 only on disk, with their parity. Two ranks' shards of 1-2 are damaged.
  void FindTwoDamagedOnDisk() {
    for (uint64_t step : {1, 2}) {
      CommitPeer(V(1, step));
      HoldData(V(1, step), Tier::kDisk);
      HoldParity(V(1, step), Tier::kDisk);
    }
    for (uint32_t i = 0; i < 4; ++i) c.Lose(nodes[i]);
    for (uint32_t i = 0; i < 4; ++i) {
      std::vector<StoredReplica> listed;
      for (uint64_t step : {1, 2}) {
        listed.push_back(Data(V(1, step), i, Tier::kDisk));
        listed.push_back(Parity(V(1, step), i, Tier::kDisk));
      }
      if (i == 1 || i == 2) listed[2].damage = "chunk 7 does not match";
      c.Attach(nodes[i], listed, 20);
    }
  }
  /// Replaces a lost node: another agent with the same node name attaches with `replicas`.
  void Replace(uint32_t i, std::vector<StoredReplica> replicas = {}) {
    c.Lose(nodes[i]);
    c.Attach(nodes[i], std::move(replicas), ++start_);
  }
  std::vector<PrepareShard> After(milliseconds time) {
    c.Pass(time);
    return c.Sent<PrepareShard>();
  }
  /// Starts the job again: all ranks restore the newest version.
  void Restore(const std::string& run, uint64_t incarnation) {
    RequestId waiter = 0;
    bool answered = false;
    const auto obey_all = [&] {
      for (auto orders = c.Sent<PrepareShard>(); !orders.empty();) {
        for (const PrepareShard& order : orders) {
          Obey(nodes[order.identity.rank.value], order);
          answered = answered || c.ReplyTo(waiter).has_value();
        }
        orders = c.Sent<PrepareShard>();
      }
      answered = answered || c.ReplyTo(waiter).has_value();
    };
    for (uint32_t i = 0; i < 4; ++i) {
      c.Join(nodes[i], run, i, 4);
      obey_all();
    }
    for (uint32_t i = 0; i < 4; ++i) {
      waiter = c.RequestRestore(nodes[i], incarnation, i);
      obey_all();
    }
    ASSERT_TRUE(answered);
  }
  void Obey(const std::string& node, const PrepareShard& order) {
    NodeReported report = c.NewReport(node);
    report.replicas.push_back(
        IsParity(order.identity.rank)
            ? Parity(order.identity.version, ParityNode(order.identity.rank), order.into)
            : Data(order.identity.version, order.identity.rank.value, order.into));
    report.prepared.push_back({order.request.value(), Status::Ok()});
    c.Apply(report);
  }
  static std::string Text(const PrepareShard& order) {
    return fmt::format("{} {} into {} from {}", ToString(order.identity.version),
                       ShardName(order.identity.rank), ToString(order.into), ToString(order.tier));
  }

  const std::vector<std::string> nodes = {"a", "b", "c", "d"};
  Harness c;
  uint64_t start_ = 10;
};

TEST_F(RepairTest, NothingIsRepairedWhileNothingIsMissing) {
  CommitPeer(V(1, 1));
  EXPECT_THAT(After(seconds(60)), IsEmpty());
}

TEST_F(RepairTest, AReplacedNodesParityIsRebuiltAfterTheRestore) {
  CommitPeer(V(1, 1));
  Replace(1);
  EXPECT_EQ(c.state().Versions("gpt").value()[0].survives, "process loss only");
  Restore("run-2", 2);
  const auto orders = After(seconds(3));
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(Text(orders[0]), "1-1 parity-1 into memory from peer");
  EXPECT_EQ(orders[0].digest, Parity(V(1, 1), 1, Tier::kMemory).digest);
  ASSERT_THAT(orders[0].group->members(), SizeIs(4));
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(orders[0].group->members()[i].has_data);
    EXPECT_EQ(orders[0].group->members()[i].has_parity, i != 1);
  }
  Obey("b", orders[0]);
  EXPECT_EQ(c.state().Versions("gpt").value()[0].survives, "any 1 node of each group");
  EXPECT_THAT(After(seconds(60)), IsEmpty());
}

TEST_F(RepairTest, NoParityIsRepairedDuringARestore) {
  CommitPeer(V(1, 1));
  Replace(1);
  Run("run-2");
  for (int i = 0; i < 5; ++i) {
    for (const PrepareShard& order : After(seconds(3))) EXPECT_FALSE(IsParity(order.identity.rank));
  }
}

TEST_F(RepairTest, TheParityOfAVersionOnDiskIsBuiltThere) {
  HoldData(V(1, 1), Tier::kMemory);
  HoldData(V(1, 1), Tier::kDisk);
  EXPECT_THAT(After(seconds(1)), IsEmpty()) << "the parity may be on its way";
  auto orders = After(seconds(1));
  ASSERT_THAT(orders, SizeIs(4)) << "one repair for each node, all at once";
  for (const PrepareShard& order : orders) {
    EXPECT_EQ(order.tier, Tier::kPeer);
    EXPECT_EQ(order.into, Tier::kDisk);
    EXPECT_TRUE(IsParity(order.identity.rank));
    EXPECT_EQ(order.digest, 0U) << "this parity never existed";
    for (const PlanMember& member : order.group->members()) {
      EXPECT_TRUE(member.has_data && !member.has_parity);
    }
  }
  for (const PrepareShard& order : orders) Obey(nodes[ParityNode(order.identity.rank)], order);
  // The version survives the loss of all memory and of one node.
  for (uint32_t i = 0; i < 4; ++i) c.Lose(nodes[i]);
  for (uint32_t i = 1; i < 4; ++i) {
    c.Attach(nodes[i], {Data(V(1, 1), i, Tier::kDisk), Parity(V(1, 1), i, Tier::kDisk)}, 20);
  }
  EXPECT_EQ(c.Job().restorable, V(1, 1));
  EXPECT_EQ(c.Job().restorable_tier, Tier::kPeer);
}

TEST_F(RepairTest, ParityOnDiskIsRepairedIfTheNodeDoesNotWriteIt) {
  CommitPeer(V(1, 1));
  HoldData(V(1, 1), Tier::kDisk);
  EXPECT_THAT(c.Sent<PrepareShard>(), IsEmpty());
  EXPECT_THAT(After(seconds(1)), IsEmpty()) << "the parity may be on its way";
  const auto orders = After(seconds(1));
  ASSERT_THAT(orders, SizeIs(4));
  EXPECT_EQ(Text(orders[0]), "1-1 parity-3 into disk from memory");
  EXPECT_EQ(orders[0].source_node, "d");
}

TEST_F(RepairTest, DamageIsAFindingAndRepaired) {
  CommitPeer(V(1, 1));
  HoldData(V(1, 1), Tier::kDisk);
  HoldParity(V(1, 1), Tier::kDisk);
  NodeReported report = c.NewReport("c");
  report.removed.push_back({"gpt", V(1, 1), Rank{2}, Tier::kDisk, "chunk 7 in x does not match"});
  c.Apply(report);
  ASSERT_THAT(c.Findings(), SizeIs(1));
  EXPECT_THAT(c.Findings()[0].message(),
              HasSubstr("gpt/1-1/rank-2 at disk on node c: chunk 7 in x does not match"));
  auto orders = c.Sent<PrepareShard>();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(Text(orders[0]), "1-1 rank-2 into disk from memory");
  Obey("c", orders[0]);
  bool recorded = false;
  for (const Effect& effect : c.effects) {
    const auto* repaired = std::get_if<Repaired>(&effect);
    recorded =
        recorded || (repaired != nullptr && repaired->node == "c" && repaired->tier == Tier::kDisk);
  }
  EXPECT_TRUE(recorded);

  // In memory: the rank still runs on the node, and the disk has the shard.
  report = c.NewReport("c");
  report.removed.push_back({"gpt", V(1, 1), Rank{2}, Tier::kMemory, "chunk 3 does not match"});
  c.Apply(report);
  orders = c.Sent<PrepareShard>();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(Text(orders[0]), "1-1 rank-2 into memory from disk");
}

/// A replica with bad chunks does not count, but its good chunks are used to decode. It is repaired
/// at once.
TEST_F(RepairTest, TwoDamagedReplicasAreRepairedFromEachOther) {
  CommitPeer(V(1, 1));
  for (uint32_t i : {1U, 2U}) {
    StoredReplica bad = Data(V(1, 1), i, Tier::kMemory);
    bad.damage = "chunk 7 does not match";
    c.Hold(nodes[i], {bad});
    ASSERT_THAT(c.Findings(), SizeIs(1));
    EXPECT_THAT(c.Findings()[0].message(), HasSubstr("chunk 7 does not match"));
    const auto orders = c.Sent<PrepareShard>();
    ASSERT_THAT(orders, SizeIs(1));
    EXPECT_EQ(Text(orders[0]), fmt::format("1-1 rank-{} into memory from peer", i));
    for (const PlanMember& member : orders[0].group->members()) EXPECT_TRUE(member.has_data);
    // The damaged replica does not make the version restorable.
    EXPECT_EQ(c.Job().restorable == V(1, 1), i == 1);
    // A repeated report is no new finding.
    c.Hold(nodes[i], {bad});
    EXPECT_THAT(c.Findings(), IsEmpty());
  }
  // After the repair both count as replicas again.
  for (uint32_t i : {1U, 2U}) c.Hold(nodes[i], {Data(V(1, 1), i, Tier::kMemory)});
  EXPECT_EQ(c.state().Versions("gpt").value()[0].survives, "any 1 node of each group");
}

TEST_F(RepairTest, FreedDamagedReplicasAreNotUsedForRepairs) {
  CommitPeer(V(1, 1));
  for (uint32_t i : {1U, 2U}) {
    StoredReplica bad = Data(V(1, 1), i, Tier::kMemory);
    bad.damage = "chunk 7 does not match";
    c.Hold(nodes[i], {bad});
    const auto orders = c.Sent<PrepareShard>();
    ASSERT_THAT(orders, SizeIs(1));
    c.Answer(nodes[i], orders[0].request, DataLossError("too few segments are left"));
  }
  EXPECT_THAT(After(seconds(1)), SizeIs(2)) << "tried again";
  for (uint32_t i : {1U, 2U}) c.ReportRemoved(nodes[i], V(1, 1), i, Tier::kMemory);
  EXPECT_THAT(After(seconds(60)), IsEmpty());
}

/// A reshard is decided before its ranks read anything, so no read can show that a decode fails.
TEST_F(RepairTest, AReshardDoesNotUseDamagedReplicas) {
  FindTwoDamagedOnDisk();
  c.Join("a", "run-2", 0, 1);
  const RequestId waiter = c.RequestReshard("a", 2, 0);
  ASSERT_TRUE(c.ReplyTo(waiter).has_value());
  EXPECT_EQ(c.ReplyTo(waiter)->version, V(1, 1));
}

TEST_F(RepairTest, ARestoreTriesDamagedReplicasBeforeAnOlderVersion) {
  FindTwoDamagedOnDisk();
  EXPECT_EQ(c.Job().restorable, V(1, 1)) << "1-2 may be decodable, but does not count";
  std::map<uint32_t, PrepareShard> orders;
  for (uint32_t i = 0; i < 4; ++i) {
    c.Join(nodes[i], "run-2", i, 4);
    for (const PrepareShard& order : c.Sent<PrepareShard>())
      orders[order.identity.rank.value] = order;
  }
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(orders[i].identity.version, V(1, 2));
    EXPECT_EQ(orders[i].tier, i == 1 || i == 2 ? Tier::kPeer : Tier::kDisk) << i;
  }
  // All decodes of one rank fail: the older version is restored.
  const RequestId waiter = c.RequestRestore("a", 2, 0);
  for (int tries = 0; tries < 20 && orders[1].identity.version == V(1, 2); ++tries) {
    c.Answer("b", orders[1].request, DataLossError("stripe 0 has 2 segments left and needs 3"));
    for (const PrepareShard& order : c.Sent<PrepareShard>())
      orders[order.identity.rank.value] = order;
  }
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(orders[i].identity.version, V(1, 1)) << i;
    c.Answer(nodes[i], orders[i].request, Status::Ok());
  }
  ASSERT_TRUE(c.ReplyTo(waiter).has_value());
  EXPECT_EQ(c.ReplyTo(waiter)->version, V(1, 1));
}

TEST_F(RepairTest, AVersionIsNotRuledOutWhileANodeThatMayHaveTheRestIsAway) {
  for (uint64_t step : {1, 2}) {
    CommitPeer(V(1, step));
    HoldData(V(1, step), Tier::kDisk);
    HoldParity(V(1, step), Tier::kDisk);
  }
  for (uint32_t i = 0; i < 4; ++i) c.Lose(nodes[i]);
  const auto attach = [&](uint32_t i) {
    std::vector<StoredReplica> listed;
    for (uint64_t step : {1, 2}) {
      listed.push_back(Data(V(1, step), i, Tier::kDisk));
      listed.push_back(Parity(V(1, step), i, Tier::kDisk));
    }
    c.Attach(nodes[i], listed, 20);
  };
  std::map<uint32_t, PrepareShard> orders;
  const auto take = [&] {
    for (const PrepareShard& order : c.Sent<PrepareShard>())
      orders[order.identity.rank.value] = order;
  };
  for (uint32_t i = 0; i < 3; ++i) attach(i);
  for (uint32_t i = 0; i < 3; ++i) {
    c.Join(nodes[i], "run-2", i, 4);
    take();
  }
  for (int tries = 0; tries < 20; ++tries) {
    if (orders.count(1) == 0) break;
    EXPECT_EQ(orders[1].identity.version, V(1, 2));
    const std::optional<uint64_t> request = orders[1].request;
    orders.erase(1);
    c.Answer("b", request, DataLossError("stripe 0 has 2 segments left and needs 3"));
    take();
  }
  attach(3);
  take();
  c.Join("d", "run-2", 3, 4);
  take();
  const RequestId waiter = c.RequestRestore("a", 2, 0);
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_EQ(orders.count(i), 1U) << i;
    EXPECT_EQ(orders[i].identity.version, V(1, 2)) << i;
    c.Answer(nodes[i], orders[i].request, Status::Ok());
  }
  ASSERT_TRUE(c.ReplyTo(waiter).has_value());
  EXPECT_EQ(c.ReplyTo(waiter)->version, V(1, 2));
}

TEST_F(RepairTest, FailedRepairsAreTriedAgainWithBackOff) {
  CommitPeer(V(1, 1));
  c.ReportRemoved("b", V(1, 1), ParityRank(1).value, Tier::kMemory);
  c.Pass(milliseconds(1));
  c.Attach("b", {Data(V(1, 1), 1, Tier::kMemory)}, 1);
  auto orders = After(seconds(2));
  for (int wait : {1, 2, 4, 8}) {
    ASSERT_THAT(orders, SizeIs(1));
    c.Answer("b", orders[0].request, ResourceExhaustedError("no slot"));
    EXPECT_THAT(After(seconds(wait) - milliseconds(1)), IsEmpty());
    orders = After(milliseconds(1));
  }
  // An agent that attaches again may have lost the directive.
  ASSERT_THAT(orders, SizeIs(1));
  c.Attach("b", {Data(V(1, 1), 1, Tier::kMemory)}, 1);
  EXPECT_THAT(c.Sent<PrepareShard>(), SizeIs(1));
}

TEST_F(RepairTest, ShardsThatCannotBeDecodedAreNotRepaired) {
  CommitPeer(V(1, 1));
  Replace(0);
  Replace(1);
  EXPECT_THAT(After(seconds(10)), IsEmpty());
}

TEST_F(RepairTest, ThePeersTakeTheVersionThatIsBeingWrittenToDisk) {
  HoldData(V(1, 1), Tier::kMemory);
  HoldData(V(1, 1), Tier::kDisk);  // the disks take step 2 next, and the peers still take step 1
  for (uint64_t step : {2, 3, 4}) HoldData(V(1, step), Tier::kMemory);
  HoldParity(V(1, 1), Tier::kMemory);
  EXPECT_EQ(c.JobStateTo("a").value_or(JobState{}).target_step[Tier::kPeer], Step{2});
  // The peers follow the disks only once; then they take the newest.
  HoldParity(V(1, 2), Tier::kMemory);
  EXPECT_EQ(c.JobStateTo("a").value_or(JobState{}).target_step[Tier::kPeer], Step{5});
}

TEST_F(RepairTest, TheNewestVersionWhoseDisksSurviveALossIsKept) {
  const auto on_disk = [&](uint64_t step) {
    HoldData(V(1, step), Tier::kMemory);
    HoldData(V(1, step), Tier::kDisk);
  };
  on_disk(1);
  HoldParity(V(1, 1), Tier::kDisk);
  for (uint64_t step = 2; step <= 8; ++step) on_disk(step);
  const auto phase = [&](uint64_t step) { return c.stored.versions.at({"gpt", V(1, step)}).phase; };
  EXPECT_EQ(phase(1), Phase::kCommitted);
  EXPECT_EQ(phase(2), Phase::kRemoving);
  EXPECT_EQ(phase(8), Phase::kCommitted);
  HoldParity(V(1, 8), Tier::kDisk);
  on_disk(9);
  EXPECT_EQ(phase(1), Phase::kRemoving);
}

TEST_F(RepairTest, AMissingSourceIsNotUsedAgain) {
  CommitPeer(V(1, 1));
  HoldData(V(1, 1), Tier::kDisk);
  const auto orders = After(seconds(2));
  ASSERT_THAT(orders, SizeIs(4));
  ASSERT_EQ(Text(orders[0]), "1-1 parity-3 into disk from memory");
  c.Answer("d", orders[0].request, NotFoundError("nothing here"));
  const auto again = After(seconds(3));
  const auto from_group = std::count_if(again.begin(), again.end(), [](const PrepareShard& order) {
    return order.identity.rank == ParityRank(3) && order.tier == Tier::kPeer;
  });
  EXPECT_EQ(from_group, 1);
}

/// The same nodes after the end of the job: 1-1 is on disk with its parity, and memory is empty.
class FinishedJobTest : public RepairTest {
 protected:
  void SetUp() override {
    RepairTest::SetUp();
    CommitPeer(V(1, 1));
    HoldData(V(1, 1), Tier::kDisk);
    HoldParity(V(1, 1), Tier::kDisk);
    for (uint32_t i = 0; i < 4; ++i) {
      c.Lose(nodes[i]);
      c.Attach(nodes[i], OnDisk(V(1, 1), i), ++start_);
    }
    c.Pass(seconds(30));
    ASSERT_THAT(c.Job().under_protected, IsEmpty());
  }
  std::vector<StoredReplica> OnDisk(VersionId version, uint32_t i) {
    return {Data(version, i, Tier::kDisk), Parity(version, i, Tier::kDisk)};
  }
  /// Carries out PrepareShards as `node` until there are no more. Returns them as texts.
  std::vector<std::string> ObeyAll(const std::string& node, milliseconds wait) {
    return ObeyAll(node, After(wait));
  }
  std::vector<std::string> ObeyAll(const std::string& node, std::vector<PrepareShard> orders) {
    std::vector<std::string> texts;
    for (; !orders.empty(); orders = c.Sent<PrepareShard>()) {
      for (const PrepareShard& order : orders) {
        texts.push_back(Text(order));
        Obey(node, order);
      }
    }
    return texts;
  }
  std::string Survives() { return c.state().Versions("gpt").value()[0].survives; }
};

TEST_F(FinishedJobTest, AllShardsOnDiskOfAReplacedNodeAreRebuilt) {
  Replace(1);
  EXPECT_THAT(ObeyAll("b", seconds(16)),
              ::testing::IsSupersetOf(
                  {"1-1 rank-1 into disk from peer", "1-1 parity-1 into disk from peer"}));
  EXPECT_EQ(Survives(), "any 1 node of each group + full power cut");
  EXPECT_THAT(c.Job().under_protected, IsEmpty());
}

TEST_F(FinishedJobTest, MissingShardsAreShownWithTheirProgress) {
  Replace(1);
  EXPECT_THAT(c.Job().under_protected, IsEmpty());  // the shards may be on their way
  c.Pass(seconds(16));
  const auto orders = After(seconds(3));
  ASSERT_THAT(orders, SizeIs(0));  // the directive was sent before, and has no reply yet
  ASSERT_THAT(c.Job().under_protected, SizeIs(1));
  UnderProtectedStatus status = c.Job().under_protected[0];
  EXPECT_EQ(status.version, V(1, 1));
  EXPECT_EQ(status.shards, 8U);
  EXPECT_EQ(status.present, 6U);
  EXPECT_EQ(status.ordered, 1U);
  EXPECT_THAT(status.why, HasSubstr("rank-1 of node b, parity-1 of node b"));
}

TEST_F(FinishedJobTest, TheReasonOfAFailedAttemptIsShown) {
  Replace(1);
  auto orders = After(seconds(3));
  ASSERT_THAT(orders, SizeIs(1));
  c.Answer("b", orders[0].request, OutOfSpaceError("the disk has no room"));
  c.Pass(seconds(16));
  ASSERT_THAT(c.Job().under_protected, SizeIs(1));
  EXPECT_THAT(c.Job().under_protected[0].why, HasSubstr("the disk has no room"));
}

TEST_F(FinishedJobTest, ANodeThatIsDownIsShownAtOnce) {
  c.Lose("b");
  c.Pass(milliseconds(100));
  ASSERT_THAT(c.Job().under_protected, SizeIs(1));
  EXPECT_THAT(c.Job().under_protected[0].why, HasSubstr("rank-1 of node b (down)"));
  EXPECT_THAT(After(seconds(60)), IsEmpty());
}

TEST_F(FinishedJobTest, AStartWithoutARestoreDelaysRepairsOnlyForAWhile) {
  Run("run-2");  // its ranks end before they request a restore
  Replace(1);
  ObeyAll("b", seconds(61));
  EXPECT_THAT(ObeyAll("b", seconds(3)), ::testing::Contains("1-1 rank-1 into disk from peer"));
  EXPECT_EQ(Survives(), "any 1 node of each group + full power cut");
}

TEST_F(FinishedJobTest, AnotherNodeReplacesAPermanentlyLostNode) {
  c.Attach("e");
  c.Lose("b");
  EXPECT_THAT(After(std::chrono::minutes(9)), IsEmpty());
  c.Pass(std::chrono::minutes(2));
  const auto orders = After(seconds(3));
  ASSERT_THAT(orders, SizeIs(1));
  ASSERT_THAT(orders[0].group->members(), SizeIs(4));
  // Parity shards contain the name that the member had when they were built.
  EXPECT_EQ(orders[0].group->members()[1].node, "e");
  EXPECT_EQ(orders[0].group->members()[1].planned, "b");
  EXPECT_EQ(orders[0].group->members()[0].planned, "");
  EXPECT_THAT(ObeyAll("e", orders), ::testing::Contains("1-1 rank-1 into disk from peer"));
  EXPECT_EQ(Survives(), "any 1 node of each group + full power cut");
  EXPECT_THAT(c.Job().under_protected, IsEmpty());
  // A restarted coordinator has the new plan.
  c.Restart();
  c.Attach("e", OnDisk(V(1, 1), 1), ++start_);
  for (uint32_t i : {0U, 2U, 3U}) c.Attach(nodes[i], OnDisk(V(1, 1), i), ++start_);
  EXPECT_EQ(Survives(), "any 1 node of each group + full power cut");
  // Shards that are lost later are rebuilt with the help of the replacement.
  c.Lose("a");
  c.Attach("a", {}, ++start_);
  EXPECT_THAT(ObeyAll("a", seconds(3)), ::testing::Contains("1-1 rank-0 into disk from peer"));
}

TEST_F(FinishedJobTest, TheReplacementHasFreeDiskSpace) {
  c.free_percent["x"] = 5;
  c.Attach("w");
  c.Attach("x");
  c.free_percent["y"] = 90;
  c.Attach("y");
  c.Lose("b");
  c.Pass(std::chrono::minutes(11));
  const auto orders = After(seconds(3));
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].group->members()[1].node, "y");  // w has less space, x too little
}

TEST_F(FinishedJobTest, AReturningNodeGetsItsPlaceBackIfNothingWasRebuiltYet) {
  c.Attach("e");
  c.Lose("b");
  c.Pass(std::chrono::minutes(11));
  c.Attach("b", OnDisk(V(1, 1), 1), ++start_);
  c.Pass(seconds(3));
  EXPECT_THAT(After(seconds(60)), IsEmpty());
  c.Pass(seconds(1));
  EXPECT_THAT(c.Job().under_protected, IsEmpty());
}

TEST_F(FinishedJobTest, ParityOfTheReplacementDoesNotCountForTheNodeThatReturned) {
  c.Attach("e");
  c.Lose("b");
  c.Pass(std::chrono::minutes(11));
  c.Hold("e", {Parity(V(1, 2), 1, Tier::kMemory)});
  c.Attach("b", OnDisk(V(1, 1), 1), ++start_);
  c.Pass(seconds(3));
  c.Pass(seconds(60));
  for (uint32_t i : {0U, 2U, 3U}) c.Hold(nodes[i], {Parity(V(1, 2), i, Tier::kMemory)});
  HoldData(V(1, 2), Tier::kMemory);
  EXPECT_THAT(c.Commits(Tier::kMemory), ElementsAre(V(1, 2)));
  EXPECT_THAT(c.Commits(Tier::kPeer), IsEmpty()) << "b is the member again, and has no parity";
  c.Hold("b", {Parity(V(1, 2), 1, Tier::kMemory)});
  EXPECT_THAT(c.Commits(Tier::kPeer), ElementsAre(V(1, 2)));
}

TEST_F(RepairTest, TheNewestVersionOnDiskCanBePinnedWithoutNamingIt) {
  EXPECT_EQ(c.Pin({}, true).outcome.code(), ErrorCode::kNotFound);
  CommitPeer(V(1, 1));
  HoldData(V(1, 1), Tier::kDisk);
  CommitPeer(V(1, 2));
  const Reply pinned = c.Pin({}, true);
  EXPECT_TRUE(pinned.outcome.ok()) << pinned.outcome.ToString();
  EXPECT_EQ(pinned.version, V(1, 1));
  EXPECT_TRUE(c.stored.versions.at({"gpt", V(1, 1)}).pinned);
}

}  // namespace
}  // namespace holdfast::coord
