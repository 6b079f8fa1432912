#include <fmt/format.h>

#include "tests/coordinator/state/harness.h"

// The predicted impact of a node loss, compared with the state after the loss.

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

/// Nodes a … d with rank 0 … 3.
class Cluster {
 public:
  explicit Cluster(const StateOptions& options = GroupsOf(4, 1), bool peers = true) : c(options) {
    c.peers = peers;
    for (const std::string& node : nodes) c.Attach(node);
    for (uint32_t rank = 0; rank < 4; ++rank) c.Join(nodes[rank], "run-1", rank, 4);
  }
  void Commit(uint64_t step, Tier tier) {
    for (uint32_t i = 0; i < 4; ++i) {
      if (tier != Tier::kPeer) c.Hold(nodes[i], {H(V(1, step), i, tier, 4)});
      if (tier != Tier::kMemory) {
        // On disk too: a protected shard is written with its parity.
        const Tier at = tier == Tier::kPeer ? Tier::kMemory : Tier::kDisk;
        if (c.peers) c.Hold(nodes[i], {P(V(1, step), NumberOf(nodes[i]), at, 4)});
      }
    }
  }
  uint32_t NumberOf(const std::string& name) {
    for (const NodeStatus& status : c.state().Nodes()) {
      if (status.name == name) return status.memberships.at(0).number;
    }
    return 0;
  }
  NodeLossImpact ImpactOfLosing(const std::vector<std::string>& lost) {
    return c.state().ImpactOfLosing("gpt", lost).value().at(0);
  }

  const std::vector<std::string> nodes = {"a", "b", "c", "d"};
  Harness c;
};

struct Case {
  const char* what;
  uint32_t group_nodes;
  uint32_t parity;
  std::vector<Tier> tiers;  // of version 1-1, in this order
  std::vector<std::string> lost;
  bool keeps;
};

class NodeLossTest : public ::testing::TestWithParam<Case> {};

TEST_P(NodeLossTest, PredictsWhatIsRestorableAfterTheLoss) {
  const Case& with = GetParam();
  Cluster cluster(GroupsOf(with.group_nodes, with.parity));
  for (const Tier tier : with.tiers) cluster.Commit(1, tier);
  ASSERT_EQ(cluster.c.Job().restorable, V(1, 1)) << with.what;

  const NodeLossImpact before = cluster.ImpactOfLosing(with.lost);
  EXPECT_EQ(before.keeps, with.keeps) << with.what << ": " << before.why_not;
  EXPECT_EQ(before.newest, V(1, 1));
  EXPECT_EQ(before.why_not.empty(), with.keeps) << before.why_not;
  EXPECT_EQ(before.stops, !with.lost.empty());
  EXPECT_EQ(cluster.c.Job().restorable, V(1, 1)) << "a query changes nothing";

  for (const std::string& node : with.lost) cluster.c.Lose(node);
  EXPECT_EQ(cluster.c.Job().restorable, before.fallback) << with.what;
  EXPECT_EQ(cluster.c.Job().restorable == V(1, 1), with.keeps) << with.what;
}

INSTANTIATE_TEST_SUITE_P(
    All, NodeLossTest,
    ::testing::Values(
        Case{"memory alone is lost with its node", 4, 1, {Tier::kMemory}, {"c"}, false},
        Case{"nothing is taken out", 4, 1, {Tier::kMemory}, {}, true},
        Case{"one parity, one node", 4, 1, {Tier::kMemory, Tier::kPeer}, {"a"}, true},
        Case{"one parity, two nodes", 4, 1, {Tier::kMemory, Tier::kPeer}, {"a", "c"}, false},
        Case{"two parities, two nodes", 4, 2, {Tier::kMemory, Tier::kPeer}, {"b", "c"}, true},
        Case{"two parities, three nodes",
             4,
             2,
             {Tier::kMemory, Tier::kPeer},
             {"a", "b", "d"},
             false},
        Case{"the disks with parity", 4, 1, {Tier::kMemory, Tier::kPeer, Tier::kDisk}, {"d"}, true},
        Case{"all of them",
             4,
             2,
             {Tier::kMemory, Tier::kPeer, Tier::kDisk},
             {"a", "b", "c", "d"},
             false}));

TEST(NodeLossGroups, TwoNodesOfOneGroupAreTooManyButOneOfEachIsNot) {
  Cluster cluster(GroupsOf(2, 1));
  cluster.Commit(1, Tier::kMemory);
  cluster.Commit(1, Tier::kPeer);
  std::map<uint32_t, std::vector<std::string>> groups;
  for (const NodeStatus& status : cluster.c.state().Nodes()) {
    groups[status.memberships.at(0).group].push_back(status.name);
  }
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_TRUE(cluster.ImpactOfLosing({groups[0][0], groups[1][1]}).keeps);
  const NodeLossImpact both = cluster.ImpactOfLosing(groups[1]);
  EXPECT_FALSE(both.keeps);
  EXPECT_THAT(both.why_not, HasSubstr("parity group 1 of 2 nodes can decode without 1 of them"));
  EXPECT_THAT(both.why_not, HasSubstr(fmt::format("last on {}", groups[1][0])));
}

TEST(NodeLossGroups, AnEarlierLossCounts) {
  Cluster cluster;
  cluster.Commit(1, Tier::kMemory);
  cluster.Commit(1, Tier::kPeer);
  EXPECT_TRUE(cluster.ImpactOfLosing({"a"}).keeps);
  cluster.c.Lose("b");
  EXPECT_FALSE(cluster.ImpactOfLosing({"a"}).keeps);
  EXPECT_TRUE(cluster.ImpactOfLosing({"b"}).keeps) << "b is lost already";
}

TEST(ImpactOfLoss, FallsBackToAnOlderVersion) {
  Cluster cluster;
  cluster.Commit(1, Tier::kMemory);
  cluster.Commit(1, Tier::kPeer);
  cluster.Commit(2, Tier::kMemory);
  const NodeLossImpact impact = cluster.ImpactOfLosing({"c"});
  EXPECT_FALSE(impact.keeps);
  EXPECT_EQ(impact.newest, V(1, 2));
  EXPECT_EQ(impact.fallback, V(1, 1));
  EXPECT_THAT(impact.why_not, HasSubstr("version 1-2 has no replica of rank 2 (last on c)"));
}

TEST(ImpactOfLoss, WithoutACommitAllTrainedStepsAreLost) {
  Cluster cluster;
  EXPECT_TRUE(cluster.ImpactOfLosing({"a"}).keeps) << "nothing was trained yet";
  cluster.c.Hold("a", {H(V(1, 1), 0, Tier::kMemory, 4)});
  EXPECT_FALSE(cluster.ImpactOfLosing({"b"}).keeps);
  EXPECT_THAT(cluster.ImpactOfLosing({"b"}).why_not, HasSubstr("nothing is committed yet"));
  EXPECT_EQ(cluster.ImpactOfLosing({"b"}).fallback, std::nullopt);
}

TEST(ImpactOfLoss, ANodeWithoutRanksStopsNothing) {
  Cluster cluster;
  cluster.c.Attach("spare");
  cluster.Commit(1, Tier::kMemory);
  const NodeLossImpact impact = cluster.ImpactOfLosing({"spare"});
  EXPECT_TRUE(impact.keeps);
  EXPECT_FALSE(impact.stops);
}

TEST(ImpactOfLoss, UnknownNamesAreErrors) {
  Cluster cluster;
  const State& state = cluster.c.state();
  EXPECT_EQ(state.ImpactOfLosing("gpt", {"a", "e"}).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(state.ImpactOfLosing("bert", {"a"}).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(state.ImpactOfLosing("", {"a"}).value().size(), 1U);
}

}  // namespace
}  // namespace holdfast::coord
