#include "coordinator/restart/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::coord {
namespace {
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PlacementTest, TheFirstLaunchTakesNodesByName) {
  const Placement placement = Place({2, {}, {"n3", "n1", "n2"}, {}});
  EXPECT_THAT(placement.nodes, ElementsAre("n1", "n2"));
  EXPECT_THAT(placement.in, ElementsAre("n1", "n2"));
}

TEST(PlacementTest, NodesKeepTheirPlaces) {
  const Placement placement = Place({3, {"n3", "n1", "n2"}, {"n0", "n1", "n2", "n3"}, {}});
  EXPECT_THAT(placement.nodes, ElementsAre("n3", "n1", "n2"));
  EXPECT_THAT(placement.in, IsEmpty());
  EXPECT_THAT(placement.out, IsEmpty());
}

TEST(PlacementTest, ASpareTakesThePlaceOfALostNode) {
  const Placement placement = Place({3, {"n0", "n1", "n2"}, {"n0", "n2", "n9"}, {}});
  EXPECT_THAT(placement.nodes, ElementsAre("n0", "n9", "n2"));
  EXPECT_THAT(placement.in, ElementsAre("n9"));
  EXPECT_THAT(placement.out, ElementsAre("n1"));
}

TEST(PlacementTest, ANodeToAvoidStaysIfNoOtherIsUsable) {
  const Placement placement = Place({3, {"n0", "n1", "n2"}, {"n0", "n1", "n2"}, {"n0"}});
  EXPECT_THAT(placement.nodes, ElementsAre("n0", "n1", "n2"));
}

TEST(PlacementTest, OfTwoNodesToAvoidOneIsReplacedAndTheOtherKeepsItsPlace) {
  const Placement placement =
      Place({3, {"n0", "n1", "n2"}, {"n0", "n1", "n2", "n3"}, {"n1", "n2"}});
  ASSERT_EQ(placement.nodes.size(), 3U);
  EXPECT_EQ(placement.nodes[0], "n0");
  EXPECT_THAT(placement.in, ElementsAre("n3"));
  ASSERT_EQ(placement.out.size(), 1U);
  const size_t kept = placement.out[0] == "n1" ? 2 : 1;
  EXPECT_EQ(placement.nodes[kept], kept == 1 ? "n1" : "n2");
}

TEST(PlacementTest, NodesThatMoreJobsBlameComeLater) {
  const auto place = [](uint32_t nodes, const std::set<std::string>& avoid) {
    return Place({nodes, {}, {"n0", "n1", "n2", "n3"}, avoid, {{"n0", 2}, {"n1", 1}}}).nodes;
  };
  EXPECT_THAT(place(1, {}), ElementsAre("n2"));
  EXPECT_THAT(place(4, {}), ElementsAre("n2", "n3", "n1", "n0"));
  EXPECT_THAT(place(3, {"n2"}), ElementsAre("n3", "n1", "n0")) << "nodes to avoid come last";
}

TEST(PlacementTest, MissingNodesAreCounted) {
  const Placement placement = Place({4, {}, {"n0"}, {}});
  EXPECT_THAT(placement.nodes, IsEmpty());
  EXPECT_EQ(placement.lacking, 3U);
}

TEST(PlacementTest, OneNodeTooFewIsTooFew) {
  const Placement first = Place({2, {}, {"n0"}, {}});
  EXPECT_THAT(first.nodes, IsEmpty());
  EXPECT_EQ(first.lacking, 1U);
  const Placement again = Place({3, {"n0", "n1", "n2"}, {"n0", "n2"}, {}});
  EXPECT_THAT(again.nodes, IsEmpty());
  EXPECT_EQ(again.lacking, 1U);
}

}  // namespace
}  // namespace holdfast::coord
