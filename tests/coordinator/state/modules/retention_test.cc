#include "coordinator/state/retention.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class RetentionModule : public ModuleTest {
 protected:
  void SetUp() override {
    ModuleTest::SetUp();
    options.keep_last = 2;
  }
  void AddOnDisk(std::vector<uint64_t> steps) {
    for (const uint64_t step : steps) AddCommitted(V(2, step), {Tier::kDisk});
  }
  std::vector<uint64_t> Kept() {
    job().retention_due = true;
    ApplyRetention(context, job());
    std::vector<uint64_t> steps;
    for (const auto& [id, version] : job().versions) {
      if (version.phase != Phase::kRemoving) steps.push_back(id.step.value);
    }
    return steps;
  }
};
using ::testing::ElementsAre;

TEST_F(RetentionModule, TheNewestAndEveryKthStayOnDisk) {
  options.keep_every = 20;
  AddOnDisk({10, 20, 30, 40, 50});
  EXPECT_THAT(Kept(), ElementsAre(20, 40, 50));
  EXPECT_EQ(job().removals.count({0, V(2, 10), Tier::kDisk}), 1U);
  ASSERT_FALSE(Added<PutVersion>().empty());
  EXPECT_EQ(Added<PutVersion>()[0].record.phase, Phase::kRemoving);
}

TEST_F(RetentionModule, PinsAndTheJobsOwnNumbersCount) {
  AddOnDisk({10, 20, 30, 40});
  OnPinSet(context, {7, "gpt", V(2, 10), true});
  EXPECT_THAT(Kept(), ElementsAre(10, 30, 40));
  OnRetentionSet(context, {8, "gpt", 1, 0});
  EXPECT_THAT(Kept(), ElementsAre(10, 40));
  OnPinSet(context, {9, "gpt", V(2, 10), false});
  EXPECT_THAT(Kept(), ElementsAre(40));
}

TEST_F(RetentionModule, OnlyAVersionOnDiskCanBePinned) {
  AddCommitted(V(2, 10), {Tier::kMemory});
  OnPinSet(context, {7, "gpt", V(2, 10), true});
  EXPECT_EQ(Added<Reply>().at(0).outcome.code(), ErrorCode::kFailedPrecondition);
  OnPinSet(context, {7, "gpt", V(2, 11), true});
  EXPECT_EQ(Added<Reply>().at(1).outcome.code(), ErrorCode::kNotFound);
}

TEST_F(RetentionModule, TheNewestRestorableVersionStays) {
  AddOnDisk({10, 20, 30});
  for (const uint64_t step : {20, 30}) {
    job().versions.at(V(2, step)).RemoveReplica(Rank{0}, {0, Tier::kDisk});
  }
  EXPECT_THAT(Kept(), ElementsAre(10, 20, 30));
}

TEST_F(RetentionModule, NothingIsRemovedWhileTheBarrierIsClosed) {
  AddOnDisk({10, 20, 30});
  const NodeIndex earlier = MakeNode("old");
  job().nodes_before.insert(earlier);
  Lose(earlier);
  EXPECT_THAT(Kept(), ElementsAre(10, 20, 30));
  Pass(options.node_lease);
  EXPECT_THAT(Kept(), ElementsAre(20, 30));
}

TEST_F(RetentionModule, TheRestoredVersionStaysUntilOneIsAsSafe) {
  AddCommitted(V(1, 10), {Tier::kDisk});
  job().lineage().decision = Decision::kVersion;
  job().lineage().restored = V(1, 10);
  options.keep_last = 1;
  AddCommitted(V(2, 11), {Tier::kMemory});
  EXPECT_THAT(Kept(), ElementsAre(10, 11));
  AddCommitted(V(2, 12), {Tier::kDisk});
  EXPECT_THAT(Kept(), ElementsAre(11, 12));
}

TEST_F(RetentionModule, ARecordInMemoryIsErasedWhenANewerVersionIsOnDisk) {
  AddCommitted(V(2, 10), {Tier::kMemory});
  AddOnDisk({20});
  AddCommitted(V(2, 30), {Tier::kMemory});
  EXPECT_THAT(Kept(), ElementsAre(20, 30));
  EXPECT_EQ(Added<EraseVersion>().size(), 1U);
}

TEST_F(RetentionModule, ARemovedVersionIsErasedWhenItsReplicasAreGone) {
  AddOnDisk({10, 20, 30});
  Kept();
  VersionState& removing = job().versions.at(V(2, 10));
  removing.RemoveReplica(Rank{0}, {0, Tier::kDisk});
  Kept();
  EXPECT_EQ(job().versions.count(V(2, 10)), 1U);
  removing.RemoveReplica(Rank{1}, {1, Tier::kDisk});
  Kept();
  EXPECT_EQ(job().versions.count(V(2, 10)), 0U);
}

}  // namespace
}  // namespace holdfast::coord
