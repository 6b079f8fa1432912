#include "coordinator/state/rehome.h"
#include "coordinator/state/survivability.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class RehomeModule : public ModuleTest {
 protected:
  void SetUp() override {
    MakeJob(3);
    MakeGroup(1);
    spare_ = MakeNode("z");
    AddCommitted(V(2, 10), {Tier::kDisk});
    AddParity(job().versions.at(V(2, 10)), Tier::kDisk);
    number_ = job().groups_of(Incarnation{2})->by_rank[1];
  }
  NodeIndex Home() { return job().groups_of(Incarnation{2})->members[number_].node; }

  NodeIndex spare_ = kNoNode;
  uint32_t number_ = 0;  // of node b
};

TEST_F(RehomeModule, AnotherNodeTakesThePlaceAfterTheTime) {
  Lose(1);
  Pass(options.rehome_after - std::chrono::seconds(1));
  RehomeLost(context, job());
  EXPECT_EQ(Home(), 1U);
  Pass(std::chrono::seconds(1));
  RehomeLost(context, job());
  EXPECT_EQ(Home(), spare_);
  EXPECT_EQ(Added<PutLineage>().size(), 1U);
  EXPECT_EQ(MemberAt(job(), Incarnation{2}, number_).node, "b");
  EXPECT_EQ(MemberAt(job(), Incarnation{2}, number_).place(), "z");
}

TEST_F(RehomeModule, ANodeWithLittleDiskSpaceTakesNoPlace) {
  cluster.nodes[spare_].health.disk_free_percent = 9;
  Lose(1);
  Pass(options.rehome_after);
  RehomeLost(context, job());
  EXPECT_EQ(Home(), 1U);
}

TEST_F(RehomeModule, ANodeThatReturnsGetsItsPlaceBackWhileTheOtherHasNothing) {
  Lose(1);
  Pass(options.rehome_after);
  RehomeLost(context, job());
  cluster.nodes[1].attached = true;
  Hold(job().versions.at(V(2, 10)), Rank{1}, {spare_, Tier::kDisk});
  RehomeLost(context, job());
  EXPECT_EQ(Home(), spare_);
  job().versions.at(V(2, 10)).RemoveReplica(Rank{1}, {spare_, Tier::kDisk});
  RehomeLost(context, job());
  EXPECT_EQ(Home(), 1U);
}

TEST_F(RehomeModule, APlanWithoutVersionsOnDiskStays) {
  job().versions.clear();
  Lose(1);
  Pass(options.rehome_after);
  RehomeLost(context, job());
  EXPECT_EQ(Home(), 1U);
}

}  // namespace
}  // namespace holdfast::coord
