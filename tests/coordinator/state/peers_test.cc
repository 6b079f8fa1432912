#include <algorithm>

#include "tests/coordinator/state/harness.h"

// Parity groups: planned once, committed when complete, counted in restores, kept by retention.

namespace holdfast::coord {
namespace {
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

/// Nodes a, b, c, d with ranks 0, 1, 2, 3, in this order in a group that survives one lost node.
class PeersTest : public ::testing::Test {
 protected:
  explicit PeersTest(const StateOptions& options = GroupsOf(4, 1)) : c(options) { c.peers = true; }
  void SetUp() override {
    for (const std::string& node : nodes) c.Attach(node);
    JoinAll("run-1");
  }
  void JoinAll(const std::string& run) {
    for (uint32_t rank = 0; rank < 4; ++rank) c.Join(nodes[rank], run, rank, 4);
  }
  StoredReplica Data(VersionId version, uint32_t rank, Tier tier = Tier::kMemory) {
    return H(version, rank, tier, 4);
  }
  StoredReplica Parity(VersionId version, uint32_t number, Tier tier = Tier::kMemory) {
    return P(version, number, tier, 4);
  }
  void Commit(VersionId version, Tier tier) {
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t number = NodeOf(nodes[i]).memberships.at(0).number;
      c.Hold(nodes[i], {tier == Tier::kPeer ? Parity(version, number) : Data(version, i, tier)});
    }
    ASSERT_THAT(c.Commits(tier), ElementsAre(version));
  }
  /// Commits version 1-`step` in memory and at peer.
  void CommitPeer(uint64_t step) {
    Commit(V(1, step), Tier::kMemory);
    Commit(V(1, step), Tier::kPeer);
  }
  /// Loses the node with its memory. A new agent with the same node name attaches with `replicas`.
  void Replace(const std::string& node, std::vector<StoredReplica> replicas = {}) {
    c.Lose(node);
    c.Attach(node, std::move(replicas), ++start_);
  }
  VersionStatus StatusOf(VersionId version) {
    const std::vector<VersionStatus> statuses = c.state().Versions("gpt").value();
    for (const VersionStatus& status : statuses) {
      if (status.version == version) return status;
    }
    ADD_FAILURE() << "no version " << ToString(version);
    return {};
  }
  NodeStatus NodeOf(const std::string& name) {
    auto statuses = c.state().Nodes();
    return *std::find_if(statuses.begin(), statuses.end(),
                         [&](const NodeStatus& status) { return status.name == name; });
  }
  std::vector<std::string> Present(const GroupPlan& group) {
    std::vector<std::string> present;
    for (const PlanMember& member : group.members()) {
      if (member.has_data && member.has_parity) present.push_back(member.node);
    }
    return present;
  }
  /// Answers every PrepareShard of the last event, and those that follow, with success.
  void PrepareAll() {
    for (auto orders = Orders(); !orders.empty(); orders = Orders()) {
      for (const OrderTo& order : orders) c.Answer(order.node, order.request, Status::Ok());
    }
  }
  struct OrderTo : PrepareShard {
    std::string node;
  };
  std::vector<OrderTo> Orders() {
    std::vector<OrderTo> orders;
    for (const PrepareShard& order : c.Sent<PrepareShard>()) {
      orders.push_back({order, nodes[order.identity.rank.value]});
    }
    return orders;
  }

  const std::vector<std::string> nodes = {"a", "b", "c", "d"};
  Harness c;
  uint64_t start_ = 10;
};

class TwoLossesTest : public PeersTest {
 protected:
  TwoLossesTest() : PeersTest(GroupsOf(4, 2)) {}
};

class TwoGroupsTest : public PeersTest {
 protected:
  TwoGroupsTest() : PeersTest(GroupsOf(2, 1)) {}
};

// ---- the plan ----

TEST_F(PeersTest, ThePlanIsMadeWhenAllRanksHaveJoined) {
  Harness k(GroupsOf(4, 1));
  k.peers = true;
  for (const std::string& node : nodes) k.Attach(node);
  for (uint32_t rank = 0; rank < 3; ++rank) k.Join(nodes[rank], "run-1", rank, 4);
  EXPECT_THAT(k.stored.lineages.at({"gpt", Incarnation{1}}).peers, IsEmpty());
  EXPECT_EQ(k.JobStateTo("a").value_or(JobState{}).group, std::nullopt);
  EXPECT_EQ(k.Job().not_protected_why, "3 of 4 ranks have joined");
  k.Join("d", "run-1", 3, 4);
  const PeerPlan& plan = k.stored.lineages.at({"gpt", Incarnation{1}}).peers;
  ASSERT_THAT(plan, SizeIs(1));
  EXPECT_EQ(plan[0].parity, 1U);
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(k.JobStateTo(nodes[i]).value().group.has_value());
    const GroupPlan group = *k.JobStateTo(nodes[i])->group;
    ASSERT_THAT(group.members(), SizeIs(4));
    EXPECT_EQ(group.layout().parity_count(), 1U);
    EXPECT_EQ(group.members()[i].node, nodes[i]);
    EXPECT_EQ(group.members()[i].address, "unix:/" + nodes[i] + ".peer");
    EXPECT_EQ(group.members()[i].number, i);
    EXPECT_FALSE(group.members()[i].has_data || group.members()[i].has_parity);
    EXPECT_THAT(group.members()[i].ranks, ElementsAre(PlanRank{Rank{i}, Harness::SlotBytes(i)}));
  }
  EXPECT_EQ(k.Job().peer_members, 4U);
  EXPECT_EQ(k.Job().not_protected_why, "");
}

TEST_F(PeersTest, ThePlanOutlivesTheCoordinator) {
  const LineageRecord before = c.stored.lineages.at({"gpt", Incarnation{1}});
  c.Restart();
  c.labels["a"] = {{"rack", "r9"}};  // has an effect from the next incarnation on
  c.Attach("a");
  ASSERT_TRUE(c.JobStateTo("a").has_value());
  ASSERT_THAT(c.JobStateTo("a")->group->members(), SizeIs(4));
  EXPECT_EQ(c.JobStateTo("a")->group->members()[1].address, "") << "b has not attached yet";
  c.Attach("b");
  EXPECT_EQ(c.JobStateTo("a")->group->members()[1].address, "unix:/b.peer");
  c.Join("a", "run-1", 0, 4);
  EXPECT_EQ(c.stored.lineages.at({"gpt", Incarnation{1}}), before);
  EXPECT_EQ(NodeOf("a").labels.at("rack"), "r9");
}

TEST_F(PeersTest, AGroupIsNotifiedWhenAMemberIsLostOrReturns) {
  c.Lose("b");
  ASSERT_TRUE(c.JobStateTo("a").has_value());
  EXPECT_EQ(c.JobStateTo("a")->group->members()[1].address, "");
  EXPECT_EQ(c.JobStateTo("a")->group->members()[2].address, "unix:/c.peer");
  c.Attach("b");
  ASSERT_TRUE(c.JobStateTo("d").has_value());
  EXPECT_EQ(c.JobStateTo("d")->group->members()[1].address, "unix:/b.peer");
  // The same agent again at the same address: the other members are not notified.
  c.Attach("b");
  EXPECT_TRUE(c.JobStateTo("b").has_value());
  EXPECT_FALSE(c.JobStateTo("a").has_value());
}

TEST_F(PeersTest, WithoutAPlanTheReasonIsShown) {
  struct {
    const char* what;
    std::function<void(Harness&)> make;
    const char* why;
  } cases[] = {
      {"an old agent",
       [](Harness& k) {
         k.Attach("a");
         k.Attach("b");
         k.Join("a", "run-1", 0, 2);
         k.peers = false;
         k.Join("b", "run-1", 1, 2);
       },
       "rank 1's agent on node b did not report the size of its slots"},
      {"no parity on a node",
       [](Harness& k) {
         k.Attach("a");
         k.peers = false;
         k.Attach("b");
         k.peers = true;
         k.Join("a", "run-1", 0, 2);
         k.Join("b", "run-1", 1, 2);
       },
       "node b has peers.enabled = false"},
      {"one node",
       [](Harness& k) {
         k.Attach("a");
         k.Join("a", "run-1", 0, 2);
         k.Join("a", "run-1", 1, 2);
       },
       "all ranks are on one node"},
      {"disabled",
       [](Harness& k) {
         StateOptions options;
         options.peers.enabled = false;
         k.Restart(options);
         k.Attach("a");
         k.Attach("b");
         k.Join("a", "run-1", 0, 2);
         k.Join("b", "run-1", 1, 2);
       },
       "peers are disabled"},
  };
  for (const auto& t : cases) {
    SCOPED_TRACE(t.what);
    Harness k;
    k.peers = true;
    t.make(k);
    EXPECT_THAT(k.stored.lineages.at({"gpt", Incarnation{1}}).peers, IsEmpty());
    EXPECT_EQ(k.Job().not_protected_why, t.why);
    EXPECT_EQ(k.Job().peer_members, 0U);
    k.Hold("a", {H(V(1, 1), 0, Tier::kMemory)});
    k.Hold("a", {P(V(1, 1), 0, Tier::kMemory, 2)});
    ASSERT_THAT(k.Findings(), SizeIs(1));
    EXPECT_THAT(k.Findings()[0].message(), HasSubstr("gpt/1-1/parity-0: incarnation 1 has no"));
  }
}

TEST_F(PeersTest, SlotsThatCannotBeLaidOutGetNoPlan) {
  Harness k;
  k.peers = true;
  k.Attach("a");
  k.Attach("b");
  k.Join("a", "run-1", 0, 2);
  k.Apply(RankJoined{{"gpt", "run-1", Rank{1}, 2, 7, 5000, {}}, {}, "b", 1, true});
  EXPECT_EQ(k.Job().not_protected_why, "rank 1 has slots of 5000 bytes");
  // The rank joins again with a valid size, as after a restart of the coordinator.
  k.Join("b", "run-1", 1, 2);
  EXPECT_EQ(k.Job().peer_members, 2U);
}

TEST_F(PeersTest, AfterACoordinatorRestartThePlanWaitsUntilAllRanksJoinAgain) {
  Harness k(GroupsOf(4, 1));
  k.peers = true;
  k.Attach("a");
  k.Attach("b");
  k.Join("a", "run-1", 0, 2);
  k.Restart();
  k.Attach("a");
  k.Attach("b");
  k.Join("b", "run-1", 1, 2);
  EXPECT_EQ(k.Job().peer_members, 0U);
  k.Join("a", "run-1", 0, 2);
  EXPECT_EQ(k.Job().peer_members, 2U);
}

TEST_F(PeersTest, TheNextIncarnationKeepsThePositions) {
  c.Lose("b");
  c.Attach("spare");
  for (uint32_t rank = 0; rank < 4; ++rank) {
    c.Join(rank == 1 ? "spare" : nodes[rank], "run-2", rank, 4);
  }
  const PeerPlan& plan = c.stored.lineages.at({"gpt", Incarnation{2}}).peers;
  ASSERT_THAT(plan, SizeIs(1));
  std::vector<std::string> groups;
  for (const PlannedMember& member : plan[0].members) groups.push_back(member.node);
  EXPECT_THAT(groups, ElementsAre("a", "spare", "c", "d"));
  // Incarnation 1 has no versions, but its plan is erased only when it is no longer the last one.
  EXPECT_THAT(c.stored.lineages.at({"gpt", Incarnation{1}}).peers, Not(IsEmpty()));
  JoinAll("run-3");
  EXPECT_THAT(c.stored.lineages.at({"gpt", Incarnation{1}}).peers, IsEmpty());
  EXPECT_THAT(c.stored.lineages.at({"gpt", Incarnation{2}}).peers, Not(IsEmpty()));
  // Parity of it that is still on a disk is removed.
  c.Hold("a", {Parity(V(1, 1), 0, Tier::kDisk)});
  EXPECT_THAT(c.Sent<RemoveVersion>(), ElementsAre(RemoveVersion{"gpt", V(1, 1), Tier::kDisk}));
  EXPECT_THAT(c.Findings(), IsEmpty());
}

TEST_F(PeersTest, UnplannedParityRemovesNothing) {
  Harness k;  // of old agents
  k.Attach("a");
  k.Join("a", "run-1", 0, 1);
  k.Hold("a", {H(V(1, 1), 0, Tier::kDisk, 1)});
  k.Join("a", "run-2", 0, 1);
  k.Hold("a", {P(V(1, 1), 0, Tier::kDisk, 1)});
  EXPECT_THAT(k.Sent<RemoveVersion>(), IsEmpty());
  EXPECT_THAT(k.Findings(), SizeIs(1));
  EXPECT_EQ(k.Job().restorable, V(1, 1));
}

TEST_F(PeersTest, RacksAreKeptApart) {
  Harness k(GroupsOf(2, 1));
  k.peers = true;
  for (const std::string& node : nodes) {
    k.labels[node] = {{"rack", node <= "b" ? "r1" : "r2"}, {"switch", "s"}};
    k.Attach(node);
  }
  for (uint32_t rank = 0; rank < 4; ++rank) k.Join(nodes[rank], "run-1", rank, 4);
  for (const PlannedGroup& group : k.stored.lineages.at({"gpt", Incarnation{1}}).peers) {
    EXPECT_NE(group.members[0].domain, group.members[1].domain);
  }
}

TEST_F(PeersTest, RecordsThatContradictThemselvesAreRefused) {
  const Records good = c.stored.ToRecords();
  ASSERT_TRUE(State::Load({}, good, {}).has_value());
  const std::vector<std::function<void(LineageRecord&)>> spoilers = {
      [](LineageRecord& l) { l.peers[0].parity = 4; },
      [](LineageRecord& l) { l.peers[0].parity = 0; },
      [](LineageRecord& l) { l.peers[0].members[1].ranks[0].rank = Rank{0}; },
      [](LineageRecord& l) { l.peers[0].members[1].ranks[0].rank = Rank{4}; },
      [](LineageRecord& l) { l.peers[0].members[1].ranks.clear(); },
      [](LineageRecord& l) { l.peers[0].members[1].node = "a"; },
  };
  for (size_t i = 0; i < spoilers.size(); ++i) {
    Records bad = good;
    spoilers[i](bad.lineages[0]);
    auto state = State::Load({}, bad, {});
    ASSERT_FALSE(state.has_value()) << i;
    EXPECT_EQ(state.error().code(), ErrorCode::kDataLoss) << i;
  }
}

// ---- replica reports and commit ----

TEST_F(PeersTest, ParityCountsOnlyWhereItIsPlanned) {
  c.Hold("a", {Parity(V(1, 1), 1)});
  ASSERT_THAT(c.Findings(), SizeIs(1));
  EXPECT_THAT(c.Findings()[0].message(), HasSubstr("number 1 is node b"));
  c.Hold("a", {Parity(V(1, 1), 4)});
  ASSERT_THAT(c.Findings(), SizeIs(1));
  EXPECT_THAT(c.Findings()[0].message(), HasSubstr("the parity groups have 4 nodes"));
  c.ReportFailedParity("a", V(1, 1), 1, Tier::kPeer);
  EXPECT_THAT(c.Findings(), SizeIs(1));
  c.ReportRemoved("a", V(1, 1), ParityRank(77).value, Tier::kMemory);
  EXPECT_EQ(NodeOf("a").held_parity_bytes, 0U);
  CommitPeer(1);  // the refused reports have no effect
}

TEST_F(PeersTest, CommitNeedsMemoryAndEveryParity) {
  // Parity may be reported first.
  for (uint32_t i = 0; i < 4; ++i) c.Hold(nodes[i], {Parity(V(1, 1), i)});
  EXPECT_THAT(c.Commits(Tier::kPeer), IsEmpty());
  for (uint32_t i = 0; i < 3; ++i) c.Hold(nodes[i], {Data(V(1, 1), i)});
  EXPECT_THAT(c.Commits(Tier::kPeer), IsEmpty());
  c.Hold("d", {Data(V(1, 1), 3)});
  EXPECT_THAT(c.Commits(Tier::kMemory), ElementsAre(V(1, 1)));
  EXPECT_THAT(c.Commits(Tier::kPeer), ElementsAre(V(1, 1)));
  const VersionRecord record = c.stored.versions.at({"gpt", V(1, 1)});
  EXPECT_EQ(record.tiers, TierBit(Tier::kMemory) | TierBit(Tier::kPeer));
  EXPECT_THAT(record.parity_digests, ElementsAre(501010, 501011, 501012, 501013));
  EXPECT_EQ(record.bytes, 4 * 4096U) << "parity is no part of the version";
  EXPECT_EQ(c.JobStateTo("a")->committed[Tier::kPeer], V(1, 1));

  Commit(V(1, 2), Tier::kMemory);
  for (uint32_t i = 0; i < 3; ++i) c.Hold(nodes[i], {Parity(V(1, 2), i)});
  c.Hold("d", {Parity(V(1, 2), 3, Tier::kDisk)});
  EXPECT_THAT(c.Commits(Tier::kPeer), IsEmpty()) << "neither tier has all of it";
  c.ReportRemoved("a", V(1, 2), ParityRank(0).value, Tier::kMemory);
  c.Hold("d", {Parity(V(1, 2), 3)});
  EXPECT_THAT(c.Commits(Tier::kPeer), IsEmpty());
  c.Hold("a", {Parity(V(1, 2), 0)});
  EXPECT_THAT(c.Commits(Tier::kPeer), ElementsAre(V(1, 2)));
}

TEST_F(PeersTest, ParityOnDiskCommitsAtPeerIfMemoryHadNoRoom) {
  Commit(V(1, 1), Tier::kMemory);
  c.ReportFailedParity("d", V(1, 1), 3, Tier::kPeer);
  for (uint32_t i = 0; i < 4; ++i) c.Hold(nodes[i], {Parity(V(1, 1), i, Tier::kDisk)});
  for (uint32_t i = 0; i < 3; ++i) c.Hold(nodes[i], {Data(V(1, 1), i, Tier::kDisk)});
  EXPECT_THAT(c.Commits(Tier::kPeer), IsEmpty());
  c.Hold("d", {Data(V(1, 1), 3, Tier::kDisk)});
  EXPECT_THAT(c.Commits(Tier::kPeer), ElementsAre(V(1, 1)));
  EXPECT_EQ(c.stored.versions.at({"gpt", V(1, 1)}).failed_tiers, 0U);
}

TEST_F(PeersTest, AVersionThatWasNeverInMemoryOfAllRanksReachesPeerOnDisk) {
  for (uint32_t i = 0; i < 3; ++i) c.Hold(nodes[i], {Data(V(1, 1), i)});
  Commit(V(1, 1), Tier::kDisk);
  for (uint32_t i = 0; i < 4; ++i) c.Hold(nodes[i], {Parity(V(1, 1), i, Tier::kDisk)});
  EXPECT_THAT(c.Commits(Tier::kPeer), ElementsAre(V(1, 1)));
  EXPECT_EQ(c.stored.versions.at({"gpt", V(1, 1)}).tiers & TierBit(Tier::kMemory), 0U);
}

TEST_F(PeersTest, ParityWithAnotherDigestIsRefused) {
  CommitPeer(1);
  StoredReplica other = Parity(V(1, 1), 2);
  other.digest ^= 1;
  c.Hold("c", {other});
  ASSERT_THAT(c.Findings(), SizeIs(1));
  EXPECT_EQ(c.Findings()[0].code(), ErrorCode::kDataLoss);
  c.Restart();  // the record has the digests
  c.Attach("c", {Data(V(1, 1), 2), other});
  ASSERT_THAT(c.Findings(), SizeIs(1));
  EXPECT_EQ(c.Findings()[0].code(), ErrorCode::kDataLoss);
}

TEST_F(PeersTest, ParityMayBeSeveralStepsBehind) {
  for (uint64_t step = 1; step <= 5; ++step) Commit(V(1, step), Tier::kMemory);
  Commit(V(1, 5), Tier::kDisk);  // the disk has a newer version than the peers
  Commit(V(1, 1), Tier::kPeer);
  EXPECT_EQ(c.Job().committed[Tier::kPeer], V(1, 1));
  EXPECT_EQ(c.Job().committed[Tier::kMemory], V(1, 5));
  // Records of superseded versions that were only in memory are erased.
  c.Pass(milliseconds(1));
  EXPECT_THAT(c.Stored(), ElementsAre(V(1, 1), V(1, 5)));
}

// ---- the target ----

TEST_F(PeersTest, TheTargetFollowsTheParity) {
  auto target = [&] { return c.JobStateTo("a").value().target_step[Tier::kPeer]; };
  Commit(V(1, 1), Tier::kMemory);
  EXPECT_EQ(target(), Step{0});
  Commit(V(1, 2), Tier::kMemory);
  EXPECT_EQ(c.Job().peer_target, V(1, 1));
  c.Hold("b", {Parity(V(1, 1), 1)});
  EXPECT_EQ(c.Job().peer_target_held, 1U);
  Commit(V(1, 3), Tier::kMemory);
  EXPECT_EQ(target(), Step{0});
  for (uint32_t i : {0U, 2U, 3U}) c.Hold(nodes[i], {Parity(V(1, 1), i)});
  EXPECT_EQ(target(), Step{4}) << "committed";
  Commit(V(1, 4), Tier::kMemory);
  c.ReportFailedParity("c", V(1, 4), 2, Tier::kPeer);
  EXPECT_EQ(target(), Step{5}) << "failed at one member";
  for (uint32_t i = 0; i < 4; ++i) c.Hold(nodes[i], {Parity(V(1, 4), i)});
  EXPECT_THAT(c.Commits(Tier::kPeer), ElementsAre(V(1, 4))) << "built again, and complete";
  c.Hold("a", {Data(V(1, 5), 0)});
  c.ReportFailed("b", V(1, 5), 1, Tier::kMemory);
  EXPECT_EQ(target(), Step{6}) << "aborted";
  Commit(V(1, 6), Tier::kMemory);
  Commit(V(1, 7), Tier::kMemory);
  c.Hold("a", {Parity(V(1, 6), 0)});
  c.Hold("b", {Parity(V(1, 6), 1)});
  c.Hold("c", {Parity(V(1, 7), 2)});
  c.Hold("d", {Parity(V(1, 7), 3)});
  EXPECT_EQ(target(), Step{8}) << "the members chose different steps";
  EXPECT_EQ(c.JobStateTo("a")->target_step[Tier::kDisk], Step{0}) << "the disk has its own";
}

TEST_F(PeersTest, TheTargetWaitsForTheMemoryReports) {
  for (uint32_t i = 0; i < 4; ++i) c.Hold(nodes[i], {Parity(V(1, 1), i)});
  EXPECT_EQ(c.Job().peer_target_step, Step{0}) << "agents would free what is about to be committed";
  Commit(V(1, 1), Tier::kMemory);
  EXPECT_EQ(c.Job().committed[Tier::kPeer], V(1, 1));
  for (uint32_t i = 0; i < 4; ++i) c.Hold(nodes[i], {Parity(V(1, 2), i)});
  c.ReportFailed("a", V(1, 2), 0, Tier::kMemory);
  EXPECT_EQ(c.Job().peer_target_step, Step{3});
}

TEST_F(PeersTest, DiskFailuresDoNotMoveThePeerTarget) {
  Commit(V(1, 1), Tier::kMemory);
  c.ReportFailedParity("a", V(1, 1), 0, Tier::kDisk);
  c.ReportFailed("b", V(1, 1), 1, Tier::kDisk);
  EXPECT_EQ(c.Job().peer_target_step, Step{0});
  Commit(V(1, 1), Tier::kPeer);
  EXPECT_EQ(c.Job().peer_target_step, Step{2});
}

TEST_F(PeersTest, AFailedParityAbortsNothing) {
  c.ReportFailedParity("b", V(1, 1), 1, Tier::kMemory);
  Commit(V(1, 1), Tier::kMemory);
  EXPECT_EQ(c.Job().committed[Tier::kMemory], V(1, 1));
  EXPECT_EQ(c.stored.versions.at({"gpt", V(1, 1)}).failed_tiers, TierBit(Tier::kPeer));
}

TEST_F(PeersTest, AReportForAVersionWithoutARecordMovesTheTarget) {
  Commit(V(1, 2), Tier::kMemory);
  c.ReportFailedParity("a", V(1, 1), 0, Tier::kPeer);  // older than a commit, never reported
  EXPECT_EQ(c.Job().peer_target_step, Step{3});
}

TEST_F(PeersTest, ARestartedCoordinatorSetsTheTargetToTheNextStepAfterACompleteVersion) {
  CommitPeer(1);
  c.Restart();
  for (uint32_t i = 0; i < 4; ++i) c.Attach(nodes[i], {Data(V(1, 1), i)});
  EXPECT_EQ(c.JobStateTo("d")->target_step[Tier::kPeer], Step{2});
}

// ---- losses ----

TEST_F(PeersTest, OneLossIsDecodedOnTheReplacement) {
  CommitPeer(1);
  Replace("b");
  EXPECT_EQ(c.Job().restorable, V(1, 1));
  EXPECT_EQ(c.Job().restorable_tier, Tier::kPeer);
  EXPECT_EQ(StatusOf(V(1, 1)).available_tiers, TierBit(Tier::kPeer));
  EXPECT_EQ(StatusOf(V(1, 1)).survives, "process loss only");
  c.Join("b", "run-2", 1, 4);
  auto orders = Orders();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].tier, Tier::kPeer);
  EXPECT_EQ(orders[0].source_node, "");
  EXPECT_EQ(orders[0].digest, 1011U);
  EXPECT_EQ(orders[0].group->layout().parity_count(), 1U);
  EXPECT_THAT(Present(*orders[0].group), ElementsAre("a", "c", "d"));
  EXPECT_EQ(orders[0].group->members()[1].address, "unix:/b.peer");
  c.Answer("b", orders[0].request, Status::Ok());
  for (uint32_t rank : {0U, 2U, 3U}) {
    c.Join(nodes[rank], "run-2", rank, 4);
    PrepareAll();
  }
  const RequestId waiter = c.RequestRestore("b", 2, 1);
  ASSERT_TRUE(c.ReplyTo(waiter).has_value());
  EXPECT_EQ(c.ReplyTo(waiter)->version, V(1, 1));
  EXPECT_EQ(c.ReplyTo(waiter)->tier, Tier::kPeer);
}

TEST_F(PeersTest, ARankWithAReplicaOnAnotherNodeIsNotDecoded) {
  CommitPeer(1);
  c.Attach("spare");
  c.Hold("spare", {Data(V(1, 1), 1)});
  c.Lose("b");
  c.Join("spare", "run-2", 1, 4);
  ASSERT_THAT(c.Sent<PrepareShard>(), SizeIs(1));
  EXPECT_EQ(c.Sent<PrepareShard>()[0].source_node, "spare");
  // The planned node still lacks the shard: the group cannot lose another node.
  EXPECT_EQ(StatusOf(V(1, 1)).survives, "process loss only");
}

TEST_F(PeersTest, SourcesAreTriedFromNearToFar) {
  CommitPeer(1);
  Commit(V(1, 1), Tier::kDisk);
  c.Attach("spare");
  c.Hold("spare", {Data(V(1, 1), 1), Data(V(1, 1), 1, Tier::kDisk)});
  c.Join("b", "run-2", 1, 4);
  const std::vector<std::pair<Tier, std::string>> expected = {{Tier::kMemory, "b"},
                                                              {Tier::kMemory, "spare"},
                                                              {Tier::kPeer, ""},
                                                              {Tier::kDisk, "b"},
                                                              {Tier::kDisk, "spare"}};
  for (const auto& [tier, node] : expected) {
    auto orders = c.Sent<PrepareShard>();
    ASSERT_THAT(orders, SizeIs(1)) << ToString(tier) << " " << node;
    EXPECT_EQ(orders[0].tier, tier);
    EXPECT_EQ(orders[0].source_node, node);
    c.Answer("b", orders[0].request, UnavailableError("not now"));
    c.Pass(milliseconds(250));
  }
}

TEST_F(PeersTest, AFailedDecodeTakesTheNextSourceThenTheOlderVersion) {
  Commit(V(1, 1), Tier::kMemory);
  Commit(V(1, 1), Tier::kDisk);
  Commit(V(1, 2), Tier::kMemory);
  Commit(V(1, 2), Tier::kDisk);
  Commit(V(1, 2), Tier::kPeer);
  Replace("b", {Data(V(1, 1), 1, Tier::kDisk), Data(V(1, 2), 1, Tier::kDisk)});
  c.Join("b", "run-2", 1, 4);
  auto orders = Orders();
  ASSERT_THAT(orders, SizeIs(1));
  ASSERT_EQ(orders[0].tier, Tier::kPeer);
  c.Answer("b", orders[0].request, DataLossError("chunk 7 differs"));
  EXPECT_THAT(c.Findings()[0].message(),
              HasSubstr("gpt/1-2/rank-1 decoded from its group: chunk 7"));
  EXPECT_EQ(StatusOf(V(1, 2)).available_tiers, TierBit(Tier::kPeer) | TierBit(Tier::kDisk))
      << "the replicas of other nodes still count";
  orders = Orders();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].identity.version, V(1, 2));
  EXPECT_EQ(orders[0].tier, Tier::kDisk);
  c.Answer("b", orders[0].request, DataLossError("chunk 8 differs"));
  // The network may have corrupted a chunk, so the decode is tried several times.
  for (int again = 0; again < 4; ++again) {
    orders = Orders();
    ASSERT_THAT(orders, SizeIs(1));
    EXPECT_EQ(orders[0].identity.version, V(1, 2));
    EXPECT_EQ(orders[0].tier, Tier::kPeer);
    c.Answer("b", orders[0].request, DataLossError("chunk 7 differs"));
  }
  orders = Orders();
  ASSERT_THAT(orders, SizeIs(1));
  EXPECT_EQ(orders[0].identity.version, V(1, 1));
  EXPECT_EQ(orders[0].tier, Tier::kDisk);
}

TEST_F(PeersTest, AnInterruptedDecodeIsTriedAgain) {
  CommitPeer(1);
  Commit(V(1, 1), Tier::kDisk);
  Replace("b", {Data(V(1, 1), 1, Tier::kDisk)});
  c.Join("b", "run-2", 1, 4);
  std::vector<Tier> tiers;
  for (int attempt = 0; attempt < 6; ++attempt) {
    auto orders = Orders();
    ASSERT_THAT(orders, SizeIs(1));
    tiers.push_back(orders[0].tier);
    c.Answer("b", orders[0].request, UnavailableError("d is slow"));
    c.Pass(milliseconds(250));
  }
  std::sort(tiers.begin(), tiers.end());
  EXPECT_THAT(tiers, ElementsAre(Tier::kPeer, Tier::kPeer, Tier::kPeer, Tier::kDisk, Tier::kDisk,
                                 Tier::kDisk));
}

TEST_F(TwoLossesTest, AnyTwoNodesMayBeLost) {
  for (uint32_t first = 0; first < 4; ++first) {
    for (uint32_t second = 0; second < 4; ++second) {
      SCOPED_TRACE(nodes[first] + nodes[second]);
      Harness k(GroupsOf(4, 2));
      k.peers = true;
      for (const std::string& node : nodes) k.Attach(node);
      for (uint32_t rank = 0; rank < 4; ++rank) k.Join(nodes[rank], "run-1", rank, 4);
      for (uint32_t i = 0; i < 4; ++i) k.Hold(nodes[i], {Data(V(1, 1), i), Parity(V(1, 1), i)});
      ASSERT_THAT(k.Commits(Tier::kPeer), ElementsAre(V(1, 1)));
      EXPECT_EQ(k.state().Versions("gpt").value()[0].survives, "any 2 nodes of each group");
      // A node that lost only its parity counts as one lost node.
      k.ReportRemoved(nodes[first], V(1, 1), ParityRank(first).value, Tier::kMemory);
      if (first != second) {
        EXPECT_EQ(k.state().Versions("gpt").value()[0].survives, "any 1 node of each group");
      }
      k.Lose(nodes[second]);
      EXPECT_EQ(k.Job().restorable, V(1, 1));
      const uint32_t third = first == 0 || second == 0 ? (first == 3 || second == 3 ? 1 : 3) : 0;
      k.Lose(nodes[third == first || third == second ? 2 : third]);
      EXPECT_EQ(k.Job().restorable, first == second ? std::optional(V(1, 1)) : std::nullopt);
    }
  }
}

TEST_F(TwoLossesTest, AfterTooManyLossesTheReasonIsShownAndAnOlderVersionIsRestored) {
  Commit(V(1, 1), Tier::kMemory);
  Commit(V(1, 1), Tier::kDisk);
  Commit(V(1, 2), Tier::kMemory);
  Commit(V(1, 2), Tier::kPeer);
  for (uint32_t i : {1U, 2U, 3U}) Replace(nodes[i], {Data(V(1, 1), i, Tier::kDisk)});
  const JobStatus job = c.Job();
  EXPECT_EQ(job.restorable, V(1, 1));
  EXPECT_THAT(job.not_restorable_why,
              HasSubstr("version 1-2 has no replica of rank 1 (last on b), rank 2 (last on c), "
                        "rank 3 (last on d); parity group 0 of 4 nodes can decode without 2 of "
                        "them, it lacks 3: b (rank-1, parity-1), c (rank-2, parity-2), d "
                        "(rank-3, parity-3)"));
  EXPECT_EQ(StatusOf(V(1, 1)).survives, "full power cut");
  EXPECT_EQ(StatusOf(V(1, 2)).survives, "");
  for (uint32_t rank = 0; rank < 4; ++rank) {
    c.Join(nodes[rank], "run-2", rank, 4);
    PrepareAll();
  }
  const RequestId waiter = c.RequestRestore("c", 2, 2);
  for (int i = 0; i < 40 && !c.ReplyTo(waiter); ++i) {
    for (const std::string& node : nodes) c.Apply(c.NewReport(node));
    c.Pass(milliseconds(100));
    PrepareAll();
  }
  ASSERT_TRUE(c.ReplyTo(waiter).has_value());
  EXPECT_EQ(c.ReplyTo(waiter)->version, V(1, 1));
  EXPECT_EQ(c.ReplyTo(waiter)->tier, Tier::kDisk);
}

TEST_F(TwoGroupsTest, GroupsCountSeparately) {
  // Groups {a, c} and {b, d}.
  ASSERT_EQ(NodeOf("a").memberships.at(0).group, NodeOf("c").memberships.at(0).group);
  CommitPeer(1);
  EXPECT_EQ(StatusOf(V(1, 1)).survives, "any 1 node of each group");
  c.Lose("a");
  c.Lose("b");
  EXPECT_EQ(c.Job().restorable, V(1, 1));
  c.Lose("d");
  EXPECT_EQ(c.Job().restorable, std::nullopt);
  EXPECT_THAT(c.Job().not_restorable_why, HasSubstr("no replica of rank 1 (last on b), rank 3"));
  EXPECT_THAT(c.Job().not_restorable_why, HasSubstr("parity group 1 of 2 nodes"));
  EXPECT_THAT(c.Job().not_restorable_why, Not(HasSubstr("parity group 0")));
}

TEST_F(PeersTest, OnlyCommittedParityDecodes) {
  Commit(V(1, 1), Tier::kMemory);
  for (uint32_t i = 0; i < 3; ++i) c.Hold(nodes[i], {Parity(V(1, 1), i)});
  c.Lose("d");
  EXPECT_EQ(c.Job().restorable, std::nullopt);
}

TEST_F(PeersTest, AShardThatMustBeDecodedHasNoDirectSource) {
  Commit(V(1, 1), Tier::kDisk);
  Commit(V(1, 2), Tier::kMemory);
  Commit(V(1, 2), Tier::kPeer);
  c.Lose("b");
  c.Attach("b", {Data(V(1, 1), 1, Tier::kDisk)}, 2);
  // A reader that can decode gets the newest version with all its remaining replicas.
  const auto all = c.state().PlanAllReplicas("gpt", {});
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->version, V(1, 2));
  EXPECT_THAT(all->sources, SizeIs(3));
  EXPECT_THAT(all->parity, SizeIs(3));
  EXPECT_FALSE(c.state().PlanRestore("gpt", {}, std::nullopt).has_value());
  auto named = c.state().PlanRestore("gpt", V(1, 2), std::nullopt);
  ASSERT_FALSE(named.has_value());
  EXPECT_THAT(named.error().message(), HasSubstr("rank 1 only in its parity group"));
}

// ---- retention floor ----

TEST_F(PeersTest, TheFloorIsKeptAlthoughNewerVersionsAreInMemory) {
  CommitPeer(1);
  for (uint64_t step = 2; step <= 200; ++step) {
    c.ReportFailedParity("a", V(1, step), 0, Tier::kPeer);
    Commit(V(1, step), Tier::kMemory);
    if (step % 10 == 0) Commit(V(1, step), Tier::kDisk);
  }
  EXPECT_EQ(c.JobStateTo("a")->committed[Tier::kPeer], V(1, 1));
  EXPECT_EQ(StatusOf(V(1, 1)).survives, "any 1 node of each group");
  // b is lost with its memory and disk: only 1-1 is restorable.
  c.Lose("b");
  EXPECT_EQ(c.Job().restorable, V(1, 1));
  EXPECT_LE(c.stored.versions.size(), 140U);
}

TEST_F(PeersTest, ANewerVersionAtPeerReplacesTheFloor) {
  CommitPeer(1);
  Commit(V(1, 2), Tier::kMemory);
  Commit(V(1, 2), Tier::kPeer);
  EXPECT_EQ(c.JobStateTo("a")->committed[Tier::kPeer], V(1, 2));
  Commit(V(1, 3), Tier::kMemory);
  c.Lose("b");
  EXPECT_EQ(c.Job().restorable, V(1, 2));
  c.ReportRemoved("a", V(1, 2), ParityRank(0).value, Tier::kMemory);
  EXPECT_EQ(c.Job().restorable, std::nullopt) << "1-1 has been freed";
}

TEST_F(PeersTest, RemovalIncludesTheParity) {
  StateOptions options = GroupsOf(4, 1);
  options.keep_last = 1;
  c.Restart(options);
  for (const std::string& node : nodes) c.Attach(node);
  for (uint64_t step : {1U, 2U}) {
    Commit(V(1, step), Tier::kMemory);
    for (uint32_t i = 0; i < 4; ++i) c.Hold(nodes[i], {Parity(V(1, step), i, Tier::kDisk)});
    EXPECT_THAT(c.Findings(), IsEmpty());
    Commit(V(1, step), Tier::kDisk);
  }
  EXPECT_THAT(c.Sent<RemoveVersion>(), SizeIs(4));
  for (uint32_t i = 0; i < 4; ++i) c.ReportRemoved(nodes[i], V(1, 1), i, Tier::kDisk);
  EXPECT_EQ(c.stored.versions.count({"gpt", V(1, 1)}), 1U) << "its parity is still there";
  for (uint32_t i = 0; i < 4; ++i) {
    c.ReportRemoved(nodes[i], V(1, 1), ParityRank(i).value, Tier::kDisk);
  }
  EXPECT_EQ(c.stored.versions.count({"gpt", V(1, 1)}), 0U);
  // Parity that is reported later is removed as well.
  c.Hold("a", {Parity(V(1, 1), 0, Tier::kDisk)});
  EXPECT_THAT(c.Sent<RemoveVersion>(), ElementsAre(RemoveVersion{"gpt", V(1, 1), Tier::kDisk}));
}

TEST_F(PeersTest, AnUnprotectedIncarnationReleasesTheFloorWithItsFirstCommit) {
  CommitPeer(1);
  Commit(V(1, 2), Tier::kMemory);
  for (uint32_t i : {1U, 2U, 3U}) c.Lose(nodes[i]);
  for (uint32_t i : {1U, 2U, 3U}) c.Attach(nodes[i], {Data(V(1, 1), i), Parity(V(1, 1), i)}, 2);
  // All four ranks move to one node.
  for (uint32_t rank = 0; rank < 4; ++rank) {
    c.Join("a", "run-2", rank, 4);
    for (const PrepareShard& order : c.Sent<PrepareShard>()) {
      c.Answer("a", order.request, Status::Ok());
    }
  }
  ASSERT_EQ(c.Job().peer_members, 0U);
  EXPECT_EQ(c.Job().committed[Tier::kPeer], V(1, 1)) << "nothing has replaced it yet";
  const RequestId waiter = c.RequestRestore("a", 2, 0);
  ASSERT_TRUE(c.ReplyTo(waiter).has_value());
  EXPECT_EQ(c.ReplyTo(waiter)->version, V(1, 1));
  for (uint32_t rank = 0; rank < 4; ++rank) c.Hold("a", {Data(V(2, 2), rank)});
  ASSERT_THAT(c.Commits(Tier::kMemory), ElementsAre(V(2, 2)));
  EXPECT_EQ(c.JobStateTo("d")->committed[Tier::kPeer], std::nullopt);
}

TEST_F(PeersTest, AProtectedIncarnationKeepsTheFloorUntilItHasAVersionAtPeer) {
  CommitPeer(1);
  Replace("b");
  JoinAll("run-2");
  c.RequestRestore("a", 2, 0);
  for (uint32_t i = 0; i < 4; ++i) c.Hold(nodes[i], {Data(V(2, 2), i)});
  EXPECT_EQ(c.Job().committed[Tier::kPeer], V(1, 1));
  for (uint32_t i = 0; i < 4; ++i) c.Hold(nodes[i], {P(V(2, 2), i, Tier::kMemory, 4)});
  EXPECT_EQ(c.Job().committed[Tier::kPeer], V(2, 2));
}

// ---- status ----

TEST_F(PeersTest, ParityIsCountedSeparately) {
  CommitPeer(1);
  c.Hold("a", {Parity(V(1, 1), 0, Tier::kDisk)});
  const NodeStatus a = NodeOf("a");
  EXPECT_EQ(a.held_memory_bytes, 4096U);
  EXPECT_EQ(a.held_parity_bytes, 4096U);
  EXPECT_EQ(a.held_disk_bytes, 4096U);
  ASSERT_THAT(a.memberships, SizeIs(1));
  EXPECT_EQ(a.memberships[0].job, "gpt");
  EXPECT_EQ(a.memberships[0].number, 0U);
  EXPECT_EQ(a.memberships[0].position, 0U);
  EXPECT_EQ(a.memberships[0].members, 4U);
  EXPECT_EQ(a.memberships[0].parity, 1U);
  EXPECT_EQ(a.peer_address, "unix:/a.peer");
  EXPECT_EQ(c.Job().committed[Tier::kPeer], V(1, 1));
  EXPECT_EQ(c.Job().peer_target_step, Step{2});
}

TEST_F(PeersTest, SurvivesFollowsTheReplicasThatExistNow) {
  Commit(V(1, 1), Tier::kMemory);
  EXPECT_EQ(StatusOf(V(1, 1)).survives, "process loss only");
  Commit(V(1, 1), Tier::kDisk);
  EXPECT_EQ(StatusOf(V(1, 1)).survives, "full power cut");
  Commit(V(1, 1), Tier::kPeer);
  EXPECT_EQ(StatusOf(V(1, 1)).survives, "any 1 node of each group; full power cut");
  c.Lose("b");
  EXPECT_EQ(StatusOf(V(1, 1)).survives, "process loss only") << "b's disk is lost as well";
  c.Attach("b", {Data(V(1, 1), 1, Tier::kDisk)});
  EXPECT_EQ(StatusOf(V(1, 1)).survives, "full power cut");
}

}  // namespace
}  // namespace holdfast::coord
