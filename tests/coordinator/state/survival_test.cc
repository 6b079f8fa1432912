#include "coordinator/state/survival.h"

#include <gtest/gtest.h>

namespace holdfast::coord {
namespace {

TEST(Survival, InWords) {
  struct {
    Survival survival;
    const char* text;
  } cases[] = {
      {{0, std::nullopt}, "process loss only"},
      {{1, std::nullopt}, "any 1 node of each group"},
      {{2, std::nullopt}, "any 2 nodes of each group"},
      {{0, 0}, "full power cut"},
      {{1, 0}, "any 1 node of each group; full power cut"},
      {{2, 0}, "any 2 nodes of each group; full power cut"},
      {{1, 1}, "any 1 node of each group + full power cut"},
      {{2, 2}, "any 2 nodes of each group + full power cut"},
      {{0, 1}, "any 1 node of each group + full power cut"},
      {{2, 1}, "any 2 nodes of each group; any 1 node of each group + full power cut"},
  };
  for (const auto& t : cases) EXPECT_EQ(ToString(t.survival), t.text);
}

}  // namespace
}  // namespace holdfast::coord
