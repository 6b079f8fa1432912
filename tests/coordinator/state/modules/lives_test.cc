#include "coordinator/state/lives.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class LivesModule : public ModuleTest {
 protected:
  void SetUp() override {
    options.life = LifeId{1};
    ModuleTest::SetUp();
  }
  StoredReplica Of(uint64_t life) {
    StoredReplica report = H(V(2, 10), 0, Tier::kDisk);
    report.life = LifeId{life};
    return report;
  }
};

TEST_F(LivesModule, AReplicaOfAnotherLifeCountsOnlyWithItsRecord) {
  EXPECT_TRUE(CountsInThisLife(context, Of(1)));
  EXPECT_FALSE(CountsInThisLife(context, Of(2)));
  AddCommitted(V(2, 10), {Tier::kDisk});
  EXPECT_FALSE(CountsInThisLife(context, Of(2)));  // another digest
  job().versions.at(V(2, 10)).ranks[0].digest = Of(2).digest;
  EXPECT_TRUE(CountsInThisLife(context, Of(2)));
  job().versions.at(V(2, 10)).recorded = false;
  EXPECT_FALSE(CountsInThisLife(context, Of(2)));
}

TEST_F(LivesModule, ReplicasWithoutALifeAreOfThisOneOnNodesThatSawNoOther) {
  EXPECT_EQ(AssignLife(context, {Of(0)}, LifeId{0})[0].life, LifeId{1});
  EXPECT_EQ(AssignLife(context, {Of(0)}, LifeId{5})[0].life, LifeId{0});
  EXPECT_EQ(AssignLife(context, {Of(3)}, LifeId{0})[0].life, LifeId{3});
}

TEST_F(LivesModule, QuarantinedReplicasAreListedByLifeUnlessItWasAdopted) {
  QuarantineReplica(context, 0, Of(2));
  EXPECT_TRUE(HasQuarantined(context, "gpt"));
  ASSERT_EQ(OtherLivesOf(context, cluster.nodes[0]).size(), 1U);
  EXPECT_EQ(OtherLivesOf(context, cluster.nodes[0])[0].newest, V(2, 10));
  job().adopted_lives.insert(LifeId{2});
  EXPECT_TRUE(OtherLivesOf(context, cluster.nodes[0]).empty());
  RemovedReplica removed{{"gpt", V(2, 10), Rank{0}}, Tier::kDisk};
  DropQuarantined(context, 0, removed);
  EXPECT_FALSE(HasQuarantined(context, "gpt"));
}

TEST_F(LivesModule, ARefusedAgentIsListedWhileItKeepsTrying) {
  NodeAttached event;
  event.node = "x";
  RecordRefused(context, event, FencedError("too new"));
  ASSERT_EQ(RefusedNodes(context).size(), 1U);
  EXPECT_EQ(RefusedNodes(context)[0].why, "too new");
  Pass(std::chrono::seconds(31));
  EXPECT_TRUE(RefusedNodes(context).empty());
}

}  // namespace
}  // namespace holdfast::coord
