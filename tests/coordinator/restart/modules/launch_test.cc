#include "coordinator/restart/launch.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
class LaunchModule : public RunModuleTest {
 protected:
  void SetUp() override {
    RunModuleTest::SetUp();
    run().record.phase = RunPhase::kWaiting;
  }
};

TEST_F(LaunchModule, NodesStayAndALostOneIsReplaced) {
  Lose(1);
  TryLaunch(context, run());
  EXPECT_EQ(run().record.phase, RunPhase::kStarting);
  EXPECT_THAT(run().record.nodes, ::testing::ElementsAre("n0", "n3", "n2"));
  EXPECT_EQ(run().record.run_id(), "run-1.2");
  EXPECT_EQ(run().incarnation, std::nullopt);
  ASSERT_EQ(SentTo(3).size(), 1U);
  EXPECT_EQ(SentTo(3)[0].run_id, "run-1.2");
  EXPECT_EQ(SentTo(3)[0].first_rank, Rank{1});
  EXPECT_EQ(SentTo(3)[0].master_address, "10.0.0.0");
}

TEST_F(LaunchModule, ItWaitsUntilEnoughNodesAreUsable) {
  Lose(1);
  table.quarantine["n3"] = {};
  TryLaunch(context, run());
  EXPECT_EQ(run().record.phase, RunPhase::kWaiting);
  EXPECT_EQ(run().record.why,
            "waits for 1 more node that can launch workers (n3: in quarantine; n1: lost)");
  EXPECT_EQ(Added<PutRun>().size(), 1U);
  TryLaunch(context, run());
  EXPECT_EQ(Added<PutRun>().size(), 1U);
}

TEST_F(LaunchModule, TheReasonNamesNodesThatAreNotUsable) {
  for (const uint32_t index : {0U, 1U, 2U, 3U}) Lose(index);
  for (const std::string name : {"n1", "n2", "n3"}) {
    table.nodes[name].attached = true;
    table.nodes[name].worker_address.clear();
  }
  TryLaunch(context, run());
  EXPECT_EQ(run().record.why,
            "waits for 3 more nodes that can launch workers "
            "(n0: lost; n1, n2 and 1 more: workers.enabled is off)");
}

TEST_F(LaunchModule, TheFirstLaunchWaitsForSparesToo) {
  run().record.launches = 0;
  run().record.nodes.clear();
  run().record.spec.spares = 2;
  TryLaunch(context, run());
  EXPECT_EQ(run().record.phase, RunPhase::kWaiting);
  run().record.spec.spares = 1;
  TryLaunch(context, run());
  EXPECT_EQ(run().record.nodes.size(), 3U);
}

TEST_F(LaunchModule, NodesToAvoidComeLast) {
  run().avoid = {"n0"};
  TryLaunch(context, run());
  EXPECT_THAT(run().record.nodes, ::testing::ElementsAre("n3", "n1", "n2"));
  ASSERT_EQ(SentTo(0).size(), 1U);
  EXPECT_EQ(SentTo(0)[0].ranks, 0U);  // stops what is left there
}

TEST_F(LaunchModule, AFreePlaceGoesToTheNodeThatFewestJobsBlame) {
  WorkerNode spare = node(3);
  spare.attach = 104;
  table.nodes["n4"] = spare;
  OpenIncident(context, "bert", FailureOn(3));
  OpenIncident(context, "llama", FailureOn(0));  // keeps its place
  Lose(1);
  TryLaunch(context, run());
  EXPECT_THAT(run().record.nodes, ::testing::ElementsAre("n0", "n4", "n2"));
}

TEST_F(LaunchModule, ANodeOfAnotherRunIsNotUsable) {
  coord::Run other = run();
  other.record.spec.job = "bert";
  other.record.phase = RunPhase::kRunning;
  other.record.nodes = {"n3"};
  table.runs["bert"] = other;
  EXPECT_EQ(UsableNodes(context, &run()).count("n3"), 0U);
  EXPECT_EQ(UsableNodes(context, &table.runs["bert"]).count("n3"), 1U);
}

TEST_F(LaunchModule, AnEndedRunStopsItsWorkersAndGivesItsIncidentsUp) {
  run().record.phase = RunPhase::kRunning;
  OpenIncident(context, "gpt", FailureOn(1));
  EndRun(context, run(), RunPhase::kFailed, "broken");
  for (const uint32_t index : {0U, 1U, 2U}) EXPECT_EQ(SentTo(index).at(0).ranks, 0U);
  EXPECT_EQ(table.incidents.at(1).state, IncidentState::kGivenUp);
}

}  // namespace
}  // namespace holdfast::coord
