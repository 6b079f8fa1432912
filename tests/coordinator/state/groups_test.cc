#include "coordinator/state/groups.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/random.h"

namespace holdfast::coord {
namespace {
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Position = std::pair<size_t, size_t>;  // group, position

PlannedMember Node(const std::string& name, const std::string& domain = "") {
  return {name, domain, {{Rank{0}, 4096}}};
}

std::map<std::string, Position> PositionsOf(const PeerPlan& plan) {
  std::map<std::string, Position> positions;
  for (size_t g = 0; g < plan.size(); ++g) {
    for (size_t i = 0; i < plan[g].members.size(); ++i) {
      const std::string& node = plan[g].members[i].node;
      EXPECT_TRUE(positions.emplace(node, Position{g, i}).second) << "twice in the plan";
    }
  }
  return positions;
}

std::vector<std::string> Names(const PlannedGroup& group) {
  std::vector<std::string> names;
  for (const PlannedMember& member : group.members) names.push_back(member.node);
  return names;
}

/// Returns `count` nodes, each in a random one of `domains` domains, except for a few without a
/// domain. With `domains` 0, no node has a domain.
std::vector<PlannedMember> SomeNodes(Random& random, size_t count, size_t domains) {
  std::vector<PlannedMember> nodes;
  for (size_t i = 0; i < count; ++i) {
    const bool labelled = domains != 0 && !random.OneIn(8);
    nodes.push_back(
        Node(fmt::format("n{}", i), labelled ? fmt::format("r{}", random.Below(domains)) : ""));
  }
  return nodes;
}

template <typename T>
void Shuffle(Random& random, std::vector<T>& items) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.Below(i)]);
}

void CheckShape(const PeerPlan& plan, size_t nodes, const GroupOptions& options) {
  const size_t wanted = (nodes + options.group_nodes - 1) / options.group_nodes;
  ASSERT_EQ(plan.size(), std::min(wanted, nodes / 2));
  size_t least = nodes;
  size_t most = 0;
  for (const PlannedGroup& group : plan) {
    const size_t size = group.members.size();
    least = std::min(least, size);
    most = std::max(most, size);
    const uint32_t automatic = nodes >= 8 && options.group_nodes >= 8 ? 2 : 1;
    const uint32_t parity = options.parity == 0 ? automatic : options.parity;
    EXPECT_EQ(group.parity, size < 4 ? 1 : std::min<uint32_t>(parity, size - 1));
  }
  EXPECT_GE(least, 2U);
  EXPECT_LE(most - least, 1U);
  EXPECT_EQ(PositionsOf(plan).size(), nodes);
}

/// Checks that each group has its even share of each domain, rounded.
void CheckSpread(const PeerPlan& plan) {
  std::map<std::string, std::vector<size_t>> counts;
  for (size_t g = 0; g < plan.size(); ++g) {
    for (const PlannedMember& member : plan[g].members) {
      if (member.domain.empty()) continue;
      std::vector<size_t>& count = counts[member.domain];
      count.resize(plan.size());
      ++count[g];
    }
  }
  for (const auto& [domain, count] : counts) {
    const auto [least, most] = std::minmax_element(count.begin(), count.end());
    EXPECT_LE(*most - *least, 1U) << "domain " << domain;
  }
}

TEST(GroupsTest, PlansAreBalancedForAnyNumberOfNodesAndDomains) {
  Random random(7);
  for (size_t nodes = 2; nodes <= 70; ++nodes) {
    for (uint32_t group_nodes : {2U, 3U, 4U, 7U, 8U, 16U, 32U}) {
      for (uint32_t parity : {0U, 1U, 3U}) {
        for (size_t domains : {0U, 1U, 2U, 5U, 30U}) {
          SCOPED_TRACE(fmt::format("{} nodes, {} a group, parity {}, {} domains", nodes,
                                   group_nodes, parity, domains));
          const GroupOptions options{group_nodes, parity};
          std::vector<PlannedMember> members = SomeNodes(random, nodes, domains);
          const PeerPlan plan = PlaceInGroups(members, {}, options);
          CheckShape(plan, nodes, options);
          CheckSpread(plan);
          Shuffle(random, members);
          ASSERT_EQ(PlaceInGroups(members, {}, options), plan) << "depends on the order";
        }
      }
    }
  }
}

TEST(GroupsTest, TooFewNodesHaveNoGroups) {
  EXPECT_THAT(PlaceInGroups({}, {}, {}), IsEmpty());
  EXPECT_THAT(PlaceInGroups({Node("a")}, {}, {}), IsEmpty());
}

TEST(GroupsTest, EachRackIsSpreadOverTheGroups) {
  const PeerPlan plan =
      PlaceInGroups({Node("a1", "a"), Node("a2", "a"), Node("b1", "b"), Node("b2", "b"),
                     Node("c1", "c"), Node("c2", "c"), Node("x"), Node("y")},
                    {}, {.group_nodes = 4, .parity = 0});
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_THAT(Names(plan[0]), ElementsAre("a1", "b1", "c1", "x"));
  EXPECT_THAT(Names(plan[1]), ElementsAre("a2", "b2", "c2", "y"));
  EXPECT_EQ(plan[0].parity, 1U);
}

TEST(GroupsTest, OtherNodesKeepTheirPositionsWhenNodesAreReplaced) {
  Random random(11);
  for (int round = 0; round < 2000; ++round) {
    const size_t count = 2 + random.Below(40);
    const size_t domains = random.Below(6);
    const GroupOptions options{2 + static_cast<uint32_t>(random.Below(12)), 0};
    std::vector<PlannedMember> nodes = SomeNodes(random, count, domains);
    const PeerPlan before = PlaceInGroups(nodes, {}, options);
    const size_t replaced = round % 2 == 0 ? 1 : random.Below(count);
    Shuffle(random, nodes);
    for (size_t i = 0; i < replaced; ++i) nodes[i].node = fmt::format("new{}", i);
    const PeerPlan after = PlaceInGroups(nodes, before, options);
    SCOPED_TRACE(fmt::format("round {}: {} of {} nodes replaced", round, replaced, count));
    CheckShape(after, count, options);
    const auto positions_before = PositionsOf(before);
    const auto positions_after = PositionsOf(after);
    for (size_t i = replaced; i < count; ++i) {
      ASSERT_EQ(positions_after.at(nodes[i].node), positions_before.at(nodes[i].node));
    }
    // Planning again changes nothing, in any order of nodes.
    Shuffle(random, nodes);
    ASSERT_EQ(PlaceInGroups(nodes, after, options), after);
    ASSERT_EQ(PlaceInGroups(nodes, before, options), after);
  }
}

TEST(GroupsTest, ANewNodeJoinsTheGroupWithTheFewestNodesOfItsDomain) {
  const GroupOptions options{.group_nodes = 3, .parity = 0};
  const PeerPlan before = PlaceInGroups({Node("a", "r1"), Node("b", "r2"), Node("c", "r3"),
                                         Node("d", "r1"), Node("e", "r2"), Node("f", "r3")},
                                        {}, options);
  ASSERT_THAT(Names(before[0]), ElementsAre("a", "b", "c"));
  // c and d leave. x, of r1, gets the place of d, and only the place of c is left for y.
  const PeerPlan after = PlaceInGroups({Node("a", "r1"), Node("b", "r2"), Node("x", "r1"),
                                        Node("y", "r1"), Node("e", "r2"), Node("f", "r3")},
                                       before, options);
  EXPECT_THAT(Names(after[0]), ElementsAre("a", "b", "y"));
  EXPECT_THAT(Names(after[1]), ElementsAre("x", "e", "f"));
}

TEST(GroupsTest, ANodeInAnotherRackCountsAsANewNode) {
  const GroupOptions options{.group_nodes = 2, .parity = 0};
  const PeerPlan unlabelled =
      PlaceInGroups({Node("a"), Node("b"), Node("c"), Node("d")}, {}, options);
  EXPECT_THAT(Names(unlabelled[0]), ElementsAre("a", "c"));
  // New labels lead to a new plan: a and c are in one rack.
  const std::vector<PlannedMember> labelled = {Node("a", "r1"), Node("b", "r2"), Node("c", "r1"),
                                               Node("d", "r2")};
  const PeerPlan plan = PlaceInGroups(labelled, unlabelled, options);
  EXPECT_EQ(plan, PlaceInGroups(labelled, {}, options));
  EXPECT_THAT(Names(plan[0]), ElementsAre("a", "b"));
}

TEST(GroupsTest, AnotherNumberOfNodesGetsANewPlan) {
  const GroupOptions options{.group_nodes = 4, .parity = 0};
  const PeerPlan eight = PlaceInGroups(
      {Node("h"), Node("g"), Node("f"), Node("e"), Node("d"), Node("c"), Node("b"), Node("a")}, {},
      options);
  const std::vector<PlannedMember> six = {Node("c"), Node("d"), Node("e"),
                                          Node("f"), Node("g"), Node("h")};
  EXPECT_EQ(PlaceInGroups(six, eight, options), PlaceInGroups(six, {}, options));
}

}  // namespace
}  // namespace holdfast::coord
