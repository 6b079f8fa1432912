#include "coordinator/state/drain.h"

#include "coordinator/state/rehome.h"
#include "tests/coordinator/state/modules/drain_module.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

TEST_F(DrainModule, ADrainIsStoredKeepsItsBeginningAndEnds) {
  EXPECT_EQ(Drain("z"), ErrorCode::kNotFound);
  EXPECT_EQ(Drain("b"), ErrorCode::kOk);
  context.at.wall_nanos += 50;
  EXPECT_EQ(Drain("b", true, true), ErrorCode::kOk);
  ASSERT_EQ(Added<PutDrain>().size(), 2U);
  EXPECT_EQ(Added<PutDrain>().back().record, (DrainRecord{"b", "new fan", 1000, true}));
  EXPECT_TRUE(job().repair_due);
  EXPECT_EQ(Drain("b", false), ErrorCode::kOk);
  EXPECT_EQ(Drain("b", false), ErrorCode::kOk);  // a second time has no effect
  EXPECT_EQ(Added<EraseDrain>().size(), 1U);
  EXPECT_FALSE(cluster.nodes[1].drain.has_value());
}

TEST_F(DrainModule, ANodeThatIsUpCannotBeRemoved) {
  OnDrainSet(context, {7, "b", true, "gone", false, /*remove=*/true});
  EXPECT_EQ(Added<Reply>().back().outcome.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(Added<Reply>().back().outcome.message(), HasSubstr("drain b --wait"));
  EXPECT_TRUE(Added<PutDrain>().empty());
}

TEST_F(DrainModule, ANodeThatMayStillAttachCannotBeRemoved) {
  cluster.nodes[1].attached = false;
  cluster.loaded_at = context.at.now;
  OnDrainSet(context, {7, "b", true, "gone", false, /*remove=*/true});
  EXPECT_EQ(Added<Reply>().back().outcome.code(), ErrorCode::kUnavailable);
  context.at.now += kAttachTime;
  OnDrainSet(context, {7, "b", true, "gone", false, /*remove=*/true});
  EXPECT_EQ(Added<Reply>().back().outcome.code(), ErrorCode::kOk);
}

TEST_F(DrainModule, ARemovedNodeIsNotShownAndAnotherTakesItsPlace) {
  const NodeIndex spare = MakeNode("z");
  cluster.nodes[1].attached = false;
  OnDrainSet(context, {7, "b", true, "gone", false, /*remove=*/true});
  EXPECT_EQ(Added<Reply>().back().outcome.code(), ErrorCode::kOk);
  ASSERT_EQ(Added<PutDrain>().size(), 1U);
  EXPECT_EQ(Added<PutDrain>().back().record, (DrainRecord{"b", "gone", 1000, false, true}));
  EXPECT_EQ(ShownNodes(), (std::vector<std::string>{"a", "c", "z"}));
  EXPECT_TRUE(DrainOf(context, "b")->drain->removed);
  RehomeLost(context, job());
  const uint32_t number = job().groups_of(Incarnation{2})->by_rank[1];
  EXPECT_EQ(job().groups_of(Incarnation{2})->members[number].node, spare);
  // Undone, it is shown again, as a node that is down.
  EXPECT_EQ(Drain("b", false), ErrorCode::kOk);
  EXPECT_EQ(ShownNodes(), (std::vector<std::string>{"a", "b", "c", "z"}));
}

TEST_F(DrainModule, ARemovedNodeIsBackWhenItsAgentAttaches) {
  cluster.nodes[1].attached = false;
  OnDrainSet(context, {7, "b", true, "gone", false, /*remove=*/true});
  EndRemoval(context, cluster.nodes[1]);
  EXPECT_FALSE(cluster.nodes[1].drain.has_value());
  EXPECT_EQ(Added<EraseDrain>().size(), 1U);
  EXPECT_EQ(ShownNodes(), (std::vector<std::string>{"a", "b", "c"}));
  // A drain for maintenance remains when the agent attaches.
  Drain("c");
  EndRemoval(context, cluster.nodes[2]);
  EXPECT_TRUE(cluster.nodes[2].drain.has_value());
}

TEST_F(DrainModule, ADrainedNodeLeaves) {
  Drain("b");
  EXPECT_EQ(cluster.leaving, (std::set<NodeIndex>{1}));
}

TEST_F(DrainModule, AnotherNodeTakesThePlaceAtOnceAndTheJobIsSafeWhenItHasTheShards) {
  const NodeIndex spare = MakeNode("z");
  Drain("b");
  EXPECT_EQ(Judge("b").state, DrainState::kLessProtected);
  RehomeLost(context, job());
  const uint32_t number = job().groups_of(Incarnation{2})->by_rank[1];
  ASSERT_EQ(job().groups_of(Incarnation{2})->members[number].node, spare);
  RehomeLost(context, job());  // the drained node is attached, and does not get its place back
  EXPECT_EQ(job().groups_of(Incarnation{2})->members[number].node, spare);
  EXPECT_EQ(Judge("b").state, DrainState::kLessProtected);
  Hold(version(), Rank{1}, {spare, Tier::kDisk});
  EXPECT_EQ(Judge("b").state, DrainState::kLessProtected) << "its parity is still missing";
  Hold(version(), ParityRank(number), {spare, Tier::kDisk});
  const DrainedJob judged = Judge("b");
  EXPECT_EQ(judged.state, DrainState::kSafe) << judged.why;
  EXPECT_EQ(judged.safe, V(2, 10));
  EXPECT_EQ(judged.why + judged.to_do, "");
}

TEST_F(DrainModule, WithoutAFreeNodeTheJobIsLessProtectedAndTheTextHasARemedy) {
  Drain("b");
  RehomeLost(context, job());
  const DrainedJob judged = Judge("b");
  EXPECT_EQ(judged.state, DrainState::kLessProtected);
  EXPECT_THAT(judged.why, HasSubstr("survives the loss of 0 further nodes"));
  EXPECT_THAT(judged.to_do, HasSubstr("attach a node"));
  // A drained node and a node with a full disk take no place.
  cluster.nodes[MakeNode("y")].drain = DrainRecord{"y", "", 1, false};
  cluster.nodes[MakeNode("z")].health.disk_free_percent = 9;
  RehomeLost(context, job());
  EXPECT_THAT(Judge("b").to_do, HasSubstr("attach a node"));
}

TEST_F(DrainModule, AVersionThatNeedsTheNodesIsNotSafe) {
  Drain("b");
  Drain("c");
  const auto status = DrainOf(context, "b");
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->others, std::vector<std::string>{"c"});
  const DrainedJob judged = Judge("b");
  EXPECT_EQ(judged.state, DrainState::kNotSafe);
  EXPECT_EQ(judged.safe, std::nullopt);
  EXPECT_THAT(judged.why, HasSubstr("version 2-10 needs the node"));
  EXPECT_NE(judged.to_do, "");
}

TEST_F(DrainModule, ASharedTierIsEnough) {
  Drain("b");
  Drain("c");
  version().tiers |= TierBit(Tier::kRemote);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    Hold(version(), Rank{rank}, ReplicaAt(kNoNode, Tier::kRemote));
  }
  EXPECT_EQ(Judge("b").state, DrainState::kSafe);
}

TEST_F(DrainModule, AJobWithoutParityGroupsIsSafeAtTierRemoteOrOnOtherNodes) {
  MakeJob(1);
  AddCommitted(V(2, 10), {Tier::kDisk});
  job().phase = JobPhase::kEnded;
  Drain("a");
  EXPECT_EQ(Judge("a").state, DrainState::kNotSafe);
  EXPECT_THAT(Judge("a").why, HasSubstr("may stop, but not lose its disk"));
  EXPECT_THAT(Judge("a").to_do, HasSubstr("configure tier remote, or save a copy with `holdfast "
                                          "restore gpt --to DIR`"));
  const NodeIndex other = MakeNode("z");
  EXPECT_EQ(Judge("a").to_do, "wait: another node copies its shards");
  job().phase = JobPhase::kRunning;
  EXPECT_THAT(Judge("a").to_do, HasSubstr("run the job on other nodes"));
  Drain("a", false);
  EXPECT_THAT(Judge("a").to_do, HasSubstr("drain the node"));
  // The next save of the job is on another node.
  Hold(version(), Rank{0}, {other, Tier::kDisk});
  EXPECT_EQ(Judge("a").state, DrainState::kSafe);
}

TEST_F(DrainModule, AJobWithoutParityGroupsWaitsForItsCopyAtTierRemote) {
  MakeJob(1);
  AddCommitted(V(2, 10), {Tier::kDisk});
  job().phase = JobPhase::kEnded;
  cluster.nodes[0].shared_tiers = TierBit(Tier::kRemote);
  Drain("a");
  EXPECT_EQ(Judge("a").to_do, "wait: its shards are copied to tier remote");
  Repair& repair = job().repairs[{V(2, 10), Rank{0}, Tier::kRemote}];
  repair.target = 0;
  repair.failure = "No space left";
  EXPECT_THAT(Judge("a").why, HasSubstr("the copy of rank-0 to remote on node a failed: No space"));
  version().tiers |= TierBit(Tier::kRemote);
  Hold(version(), Rank{0}, ReplicaAt(kNoNode, Tier::kRemote));
  EXPECT_EQ(Judge("a").state, DrainState::kSafe);
}

TEST_F(DrainModule, APinnedVersionMustSurviveToo) {
  VersionState& pinned = AddCommitted(V(1, 5), {Tier::kDisk});  // without parity
  Drain("b");
  EXPECT_EQ(Judge("b").state, DrainState::kLessProtected);
  pinned.pinned = true;
  EXPECT_EQ(Judge("b").state, DrainState::kNotSafe);
  EXPECT_THAT(Judge("b").why, HasSubstr("1-5"));
}

TEST_F(DrainModule, ANodeKeepsThePlacesOfItsRunningRanks) {
  MakeNode("z");
  job().phase = JobPhase::kRunning;
  Drain("b");
  RehomeLost(context, job());
  const uint32_t number = job().groups_of(Incarnation{2})->by_rank[1];
  EXPECT_EQ(job().groups_of(Incarnation{2})->members[number].node, 1U);
  const DrainedJob judged = Judge("b");
  EXPECT_EQ(judged.state, DrainState::kLessProtected);
  EXPECT_TRUE(judged.runs_here);
  EXPECT_THAT(judged.to_do, HasSubstr("--move-runs"));
}

TEST_F(DrainModule, WhileAJobSavesOneVersionMayBeWithoutParity) {
  job().phase = JobPhase::kRunning;
  Drain("b");
  AddCommitted(V(2, 11), {Tier::kMemory});
  EXPECT_EQ(Judge("b").state, DrainState::kLessProtected);
  EXPECT_EQ(Judge("b").safe, V(2, 10));
  AddCommitted(V(2, 12), {Tier::kMemory});
  EXPECT_EQ(Judge("b").state, DrainState::kNotSafe) << "two steps would be lost";
  job().versions.erase(V(2, 12));
  Pass(options.flush_after * 10);
  EXPECT_EQ(Judge("b").state, DrainState::kNotSafe) << "the job no longer saves";
}

TEST_F(DrainModule, AJobWithoutAnyVersionIsSafeUnlessItRunsThere) {
  job().versions.clear();
  EXPECT_EQ(Judge("b").state, DrainState::kSafe);
  job().phase = JobPhase::kRunning;
  EXPECT_EQ(Judge("b").state, DrainState::kNotSafe);
}

TEST_F(DrainModule, RunsMayLeaveOnlyWhenNothingWouldBeLost) {
  job().phase = JobPhase::kRunning;
  Drain("b");
  AllowRunsToLeave(context);
  EXPECT_TRUE(Added<RunsMayLeave>().empty()) << "the operator did not ask for it";
  Drain("b", true, true);
  AllowRunsToLeave(context);
  ASSERT_EQ(Added<RunsMayLeave>().size(), 1U);
  EXPECT_EQ(Added<RunsMayLeave>()[0].node, "b");
  AddCommitted(V(2, 11), {Tier::kMemory});
  AddCommitted(V(2, 12), {Tier::kMemory});
  AllowRunsToLeave(context);
  EXPECT_EQ(Added<RunsMayLeave>().size(), 1U);
}

}  // namespace
}  // namespace holdfast::coord
