#include "coordinator/state/lifecycle.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class LifecycleModule : public ModuleTest {
 protected:
  LocalRank Trainer(uint32_t rank, bool goodbye = false) {
    LocalRank one;
    one.job = "gpt";
    one.incarnation = Incarnation{2};
    one.rank = Rank{rank};
    one.goodbye = goodbye;
    return one;
  }
  void Report(bool goodbye) {
    OnRanks(context, 0, {Trainer(0, goodbye)});
    OnRanks(context, 1, {Trainer(1, goodbye)});
  }
};

TEST_F(LifecycleModule, AJobEndsWithoutTrainersAndRunsAgainWithThem) {
  Report(/*goodbye=*/false);
  Pass(std::chrono::hours(1));
  AdvanceLifecycle(context, job());
  EXPECT_EQ(job().phase, JobPhase::kRunning);
  OnRanks(context, 0, {});
  OnRanks(context, 1, {});
  AdvanceLifecycle(context, job());
  EXPECT_EQ(job().phase, JobPhase::kRunning);
  Pass(options.end_grace);
  AdvanceLifecycle(context, job());
  EXPECT_EQ(job().phase, JobPhase::kEnded);
  OnRanks(context, 0, {Trainer(0)});
  EXPECT_EQ(job().phase, JobPhase::kRunning);
}

TEST_F(LifecycleModule, AJobFinishesWithAGoodbyeOfAllRanksOrTheSuccessOfItsRun) {
  Report(/*goodbye=*/true);
  Pass(options.end_grace);
  AdvanceLifecycle(context, job());
  EXPECT_EQ(job().phase, JobPhase::kFinished);
  EXPECT_TRUE(Added<PutJob>().back().record.finished);
  MakeJob(2);
  OnRunStateChanged(context, {"gpt", /*active=*/true, false});
  Pass(options.end_grace);
  AdvanceLifecycle(context, job());
  EXPECT_EQ(job().phase, JobPhase::kRunning);
  OnRunStateChanged(context, {"gpt", /*active=*/false, /*finished=*/true});
  Pass(options.end_grace);
  AdvanceLifecycle(context, job());
  EXPECT_EQ(job().phase, JobPhase::kFinished);
}

TEST_F(LifecycleModule, TrainersOfALostNodeCountForAWhile) {
  Report(/*goodbye=*/false);
  Lose(0);
  Lose(1);
  Pass(std::chrono::seconds(29));
  AdvanceLifecycle(context, job());
  EXPECT_EQ(job().phase, JobPhase::kRunning);
  Pass(std::chrono::seconds(1));
  AdvanceLifecycle(context, job());
  Pass(options.end_grace);
  AdvanceLifecycle(context, job());
  EXPECT_EQ(job().phase, JobPhase::kEnded);
}

TEST_F(LifecycleModule, MemoryIsReleasedOnlyWhenDiskHasTheNewestVersion) {
  AddCommitted(V(2, 10), {Tier::kMemory});
  VersionState& pending = Add(V(2, 11));
  SetPhase(context, job(), JobPhase::kFinished);
  Pass(options.release_after);
  AdvanceLifecycle(context, job());
  EXPECT_FALSE(job().released);
  VersionState& version = job().versions.at(V(2, 10));
  version.tiers |= TierBit(Tier::kDisk);
  for (uint32_t rank : {0U, 1U}) Hold(version, Rank{rank}, {rank, Tier::kDisk});
  AdvanceLifecycle(context, job());
  EXPECT_TRUE(job().released);
  EXPECT_EQ(pending.phase, Phase::kAborted);
}

TEST_F(LifecycleModule, ATrainerCanOnlyWaitForAKnownVersion) {
  OnTierWanted(context, {"gpt", V(2, 10), Tier::kDisk});
  EXPECT_FALSE(job().repair_due);
  AddCommitted(V(2, 10), {Tier::kMemory});
  OnTierWanted(context, {"gpt", V(2, 10), Tier::kDisk});
  EXPECT_EQ(job().wanted, V(2, 10));
  EXPECT_TRUE(job().repair_due);
}

}  // namespace
}  // namespace holdfast::coord
