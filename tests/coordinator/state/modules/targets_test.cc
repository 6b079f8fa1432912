#include "coordinator/state/targets.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using TargetsModule = ModuleTest;

TEST_F(TargetsModule, ATargetSelectsItsFirstVersionThatIsNotOver) {
  job().targets[Tier::kDisk].Restart(Step{10});
  Add(V(2, 9));
  Add(V(2, 11)).phase = Phase::kAborted;
  Add(V(2, 12));
  Add(V(2, 13));
  EXPECT_FALSE(SelectsVersion(job(), job().targets[Tier::kDisk], V(2, 9)));
  EXPECT_TRUE(SelectsVersion(job(), job().targets[Tier::kDisk], V(2, 12)));
  EXPECT_FALSE(SelectsVersion(job(), job().targets[Tier::kDisk], V(2, 13)));
  EXPECT_FALSE(SelectsVersion(job(), job().targets[Tier::kDisk], V(1, 12)));
}

TEST_F(TargetsModule, AResolvedTargetGoesPastTheNewestStep) {
  job().targets[Tier::kDisk].Restart(Step{10});
  job().newest_seen = Step{14};
  AdvanceTargets(job());
  EXPECT_EQ(job().targets[Tier::kDisk].step(), Step{10});
  job().targets[Tier::kDisk].Resolve(Step{10});
  AdvanceTargets(job());
  EXPECT_EQ(job().targets[Tier::kDisk].step(), Step{15});
  EXPECT_TRUE(job().job_state_changed);
}

TEST_F(TargetsModule, WritersThatTookDifferentStepsGiveTheTargetUp) {
  job().targets[Tier::kDisk].Restart(Step{10});
  job().newest_seen = Step{11};
  job().targets[Tier::kDisk].Acknowledge(Rank{0}, Step{10});
  AdvanceTargets(job());
  EXPECT_EQ(job().targets[Tier::kDisk].step(), Step{10});
  job().targets[Tier::kDisk].Acknowledge(Rank{1}, Step{11});
  AdvanceTargets(job());
  EXPECT_EQ(job().targets[Tier::kDisk].step(), Step{12});
}

TEST_F(TargetsModule, PeersFollowTheVersionThatIsWrittenToDisk) {
  MakeGroup(1);
  job().newest_seen = Step{20};
  job().targets[Tier::kDisk].Restart(Step{15});
  job().targets[Tier::kPeer].Restart(Step{10});
  job().targets[Tier::kPeer].Resolve(Step{10});
  AdvanceTargets(job());
  EXPECT_EQ(job().targets[Tier::kPeer].step(), Step{15});
  // The peers have already taken a newer version than the one that is being written to disk.
  job().targets[Tier::kPeer].Resolve(Step{16});
  AdvanceTargets(job());
  EXPECT_EQ(job().targets[Tier::kPeer].step(), Step{21});
}

TEST_F(TargetsModule, AfterAStartThePeersContinueWithTheOldestVersionTheyMayProtect) {
  MakeGroup(1);
  Add(V(1, 20));
  Add(V(2, 9));
  Add(V(2, 10)).tiers = TierBit(Tier::kMemory) | TierBit(Tier::kPeer);
  Add(V(2, 11)).failed_tiers = TierBit(Tier::kPeer);
  VersionState& waits = Add(V(2, 12));
  Add(V(2, 13));
  const auto target = [&] {
    RestartTargets(job(), Step{14});
    ContinueAtPeer(job());
    return job().targets[Tier::kPeer].step();
  };
  EXPECT_EQ(target(), Step{14});  // pending versions have no record
  for (uint64_t step : {9, 10, 11, 12, 13}) {
    job().versions.at(V(2, step)).phase = Phase::kCommitted;
  }
  EXPECT_EQ(target(), Step{12});
  waits.failed_tiers = TierBit(Tier::kPeer);
  EXPECT_EQ(target(), Step{13});
  job().versions.at(V(2, 13)).tiers = TierBit(Tier::kPeer);
  EXPECT_EQ(target(), Step{14});
  EXPECT_EQ(job().targets[Tier::kDisk].step(), Step{14});
}

TEST_F(TargetsModule, VersionsBeforeThePeerTargetAreNotBuilt) {
  VersionState& version = Add(V(2, 10));
  EXPECT_FALSE(MayReachPeer(job(), version));  // no groups
  MakeGroup(1);
  EXPECT_TRUE(MayReachPeer(job(), version));
  EXPECT_FALSE(ParityAwaitsMemory(job()));
  AddParity(version, Tier::kMemory);
  EXPECT_TRUE(ParityAwaitsMemory(job()));
  version.failed_tiers = TierBit(Tier::kPeer);
  EXPECT_FALSE(MayReachPeer(job(), version));
  version.failed_tiers = 0;
  job().targets[Tier::kPeer].Restart(Step{11});
  EXPECT_FALSE(MayReachPeer(job(), version));
}

}  // namespace
}  // namespace holdfast::coord
