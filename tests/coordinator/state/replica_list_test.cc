#include "coordinator/state/replica_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace holdfast::coord {
namespace {
Replica R(NodeIndex node) { return {node, node % 2 == 0 ? Tier::kMemory : Tier::kDisk}; }

// Adds and removes as a vector would, also where the list changes its form.
TEST(ReplicaList, KeepsTheOrderOfAVector) {
  for (NodeIndex count = 0; count < 6; ++count) {
    for (NodeIndex first = 0; first < count; ++first) {
      ReplicaList list;
      std::vector<Replica> expected;
      const auto check = [&] {
        ASSERT_EQ(list.size(), expected.size());
        EXPECT_EQ(list.empty(), expected.empty());
        EXPECT_TRUE(std::equal(list.begin(), list.end(), expected.begin()));
        for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(list[i], expected[i]);
      };
      const auto add = [&](NodeIndex node) {
        list.push_back(R(node));
        expected.push_back(R(node));
        check();
      };
      for (NodeIndex node = 0; node < count; ++node) add(node);
      const ReplicaList copy = list;
      for (NodeIndex node = first; !list.empty(); node = (node + 1) % count) {
        list.erase(std::find(list.begin(), list.end(), R(node)));
        std::erase(expected, R(node));
        check();
      }
      for (NodeIndex node = 0; node < count; ++node) add(count - node);
      EXPECT_EQ(copy.size(), count);
      EXPECT_EQ(copy.front(), R(0));
    }
  }
}

}  // namespace
}  // namespace holdfast::coord
