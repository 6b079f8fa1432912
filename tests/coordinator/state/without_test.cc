#include <fmt/format.h>

#include "tests/coordinator/state/harness.h"

// What stays when some nodes go: asked before, and compared with what is so afterwards.

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
    for (const NodeView& view : c.state().Nodes()) {
      if (view.name == name) return view.seats.at(0).number;
    }
    return 0;
  }
  WithoutView Ask(const std::vector<std::string>& gone) {
    return c.state().Without("gpt", gone).value().at(0);
  }

  const std::vector<std::string> nodes = {"a", "b", "c", "d"};
  Harness c;
};

struct Case {
  const char* what;
  uint32_t group_nodes;
  uint32_t parity;
  std::vector<Tier> tiers;  // of version 1-1, in this order
  std::vector<std::string> gone;
  bool keeps;
};

class WithoutTest : public ::testing::TestWithParam<Case> {};

TEST_P(WithoutTest, ForetellsWhatIsSoAfterwards) {
  const Case& with = GetParam();
  Cluster cluster(GroupsOf(with.group_nodes, with.parity));
  for (const Tier tier : with.tiers) cluster.Commit(1, tier);
  ASSERT_EQ(cluster.c.Job().restorable, V(1, 1)) << with.what;

  const WithoutView before = cluster.Ask(with.gone);
  EXPECT_EQ(before.keeps, with.keeps) << with.what << ": " << before.why_not;
  EXPECT_EQ(before.newest, V(1, 1));
  EXPECT_EQ(before.why_not.empty(), with.keeps) << before.why_not;
  EXPECT_EQ(before.stops, !with.gone.empty());
  EXPECT_EQ(cluster.c.Job().restorable, V(1, 1)) << "a question changes nothing";

  for (const std::string& node : with.gone) cluster.c.Lose(node);
  EXPECT_EQ(cluster.c.Job().restorable, before.fallback) << with.what;
  EXPECT_EQ(cluster.c.Job().restorable == V(1, 1), with.keeps) << with.what;
}

INSTANTIATE_TEST_SUITE_P(
    All, WithoutTest,
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

TEST(WithoutGroups, TwoOfOneGroupAreTooManyAndOneOfEachIsNot) {
  Cluster cluster(GroupsOf(2, 1));
  cluster.Commit(1, Tier::kMemory);
  cluster.Commit(1, Tier::kPeer);
  std::map<uint32_t, std::vector<std::string>> groups;
  for (const NodeView& view : cluster.c.state().Nodes()) {
    groups[view.seats.at(0).group].push_back(view.name);
  }
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_TRUE(cluster.Ask({groups[0][0], groups[1][1]}).keeps);
  const WithoutView both = cluster.Ask(groups[1]);
  EXPECT_FALSE(both.keeps);
  EXPECT_THAT(both.why_not, HasSubstr("parity group 1 of 2 nodes can decode without 1 of them"));
  EXPECT_THAT(both.why_not, HasSubstr(fmt::format("last on {}", groups[1][0])));
}

TEST(WithoutGroups, ALossBeforeCounts) {
  Cluster cluster;
  cluster.Commit(1, Tier::kMemory);
  cluster.Commit(1, Tier::kPeer);
  EXPECT_TRUE(cluster.Ask({"a"}).keeps);
  cluster.c.Lose("b");
  EXPECT_FALSE(cluster.Ask({"a"}).keeps);
  EXPECT_TRUE(cluster.Ask({"b"}).keeps) << "it is gone already";
}

TEST(WithoutNodes, AnOlderVersionIsWhatIsLeft) {
  Cluster cluster;
  cluster.Commit(1, Tier::kMemory);
  cluster.Commit(1, Tier::kPeer);
  cluster.Commit(2, Tier::kMemory);
  const WithoutView view = cluster.Ask({"c"});
  EXPECT_FALSE(view.keeps);
  EXPECT_EQ(view.newest, V(1, 2));
  EXPECT_EQ(view.fallback, V(1, 1));
  EXPECT_THAT(view.why_not, HasSubstr("version 1-2 has no copy of rank 2 (last on c)"));
}

TEST(WithoutNodes, WithNothingCommittedWhatWasTrainedGoes) {
  Cluster cluster;
  EXPECT_TRUE(cluster.Ask({"a"}).keeps) << "nothing was trained yet";
  cluster.c.Hold("a", {H(V(1, 1), 0, Tier::kMemory, 4)});
  EXPECT_FALSE(cluster.Ask({"b"}).keeps);
  EXPECT_THAT(cluster.Ask({"b"}).why_not, HasSubstr("nothing is committed yet"));
  EXPECT_EQ(cluster.Ask({"b"}).fallback, VersionId{});
}

TEST(WithoutNodes, ANodeWithoutRanksStopsNothing) {
  Cluster cluster;
  cluster.c.Attach("spare");
  cluster.Commit(1, Tier::kMemory);
  const WithoutView view = cluster.Ask({"spare"});
  EXPECT_TRUE(view.keeps);
  EXPECT_FALSE(view.stops);
}

TEST(WithoutNodes, UnknownNamesAreErrors) {
  Cluster cluster;
  EXPECT_EQ(cluster.c.state().Without("gpt", {"a", "e"}).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(cluster.c.state().Without("bert", {"a"}).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(cluster.c.state().Without("", {"a"}).value().size(), 1U);
}

}  // namespace
}  // namespace holdfast::coord
