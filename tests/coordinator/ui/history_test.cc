#include "coordinator/ui/history.h"

#include <gmock/gmock.h>

namespace holdfast::ui {
namespace {
constexpr int64_t kStart = 1'700'000'000'000'000'000;
constexpr uint64_t kGib = uint64_t{1} << 30;

coordinator::NodeStatus* AddNode(view::ClusterSnapshot& cluster, const std::string& name) {
  auto* node = cluster.status.add_nodes();
  node->set_node(name);
  node->set_alive(true);
  node->set_disk_free_percent(60);
  node->set_held_memory_bytes(kGib);
  return node;
}

void SetArena(coordinator::NodeStatus* node, uint64_t bytes, uint64_t reserved) {
  node->mutable_arena()->set_bytes(bytes);
  node->mutable_arena()->set_reserved_bytes(reserved);
}

/// The first sample of capacity.
Json CapacityOf(view::ClusterSnapshot& cluster) {
  cluster.now_wall_nanos = kStart;
  History history;
  history.Observe(cluster);
  return history.ToJson({}, cluster.now_wall_nanos)["capacity"].back();
}

TEST(HistoryCapacity, ASampleHasTheSumAndTheFullestOfTheArenas) {
  view::ClusterSnapshot cluster;
  SetArena(AddNode(cluster, "n0"), 8 * kGib, 2 * kGib);
  SetArena(AddNode(cluster, "n1"), 8 * kGib, 5 * kGib);
  EXPECT_EQ(CapacityOf(cluster),
            Json({kStart / 1'000'000, 2 * kGib, 0, 0, 60, 16 * kGib, 7 * kGib, 37}));
}

TEST(HistoryCapacity, NodesWithoutTheirArenaAreNoEmptyArenas) {
  view::ClusterSnapshot cluster;
  AddNode(cluster, "older");
  EXPECT_EQ(CapacityOf(cluster)[5], 0);
  EXPECT_EQ(CapacityOf(cluster)[7], nullptr);
  SetArena(AddNode(cluster, "n1"), 8 * kGib, 0);
  EXPECT_EQ(CapacityOf(cluster)[5], 8 * kGib);
  EXPECT_EQ(CapacityOf(cluster)[7], 100);
}

TEST(HistoryCapacity, NodesThatAreDownDoNotCount) {
  view::ClusterSnapshot cluster;
  SetArena(AddNode(cluster, "n0"), 8 * kGib, 8 * kGib);
  cluster.status.mutable_nodes(0)->set_alive(false);
  const Json sample = CapacityOf(cluster);
  EXPECT_EQ(sample[4], nullptr);
  EXPECT_EQ(sample[6], 0);
  EXPECT_EQ(sample[7], nullptr);
}

TEST(HistoryCapacity, AnArenaBelowItsSegmentsIsFull) {
  view::ClusterSnapshot cluster;
  SetArena(AddNode(cluster, "n0"), 2 * kGib, 3 * kGib);
  EXPECT_EQ(CapacityOf(cluster)[7], 0);
  SetArena(cluster.status.mutable_nodes(0), 0, 0);
  EXPECT_EQ(CapacityOf(cluster)[7], 0);
}

}  // namespace
}  // namespace holdfast::ui
