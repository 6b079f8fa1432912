#include "coordinator/restart/load_runs.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
class LoadRunsModule : public RunModuleTest {
 protected:
  void SetUp() override {
    RunModuleTest::SetUp();
    records.runs.push_back(run().record);
    LineageRecord lineage;
    lineage.job = "gpt";
    lineage.incarnation = Incarnation{2};
    lineage.run_id = run().record.run_id();
    records.lineages.push_back(lineage);
    table = {};
  }
  Records records;
};

TEST_F(LoadRunsModule, WhatALaunchReachedFollowsFromLineagesAndVersions) {
  VersionRecord version;
  version.job = "gpt";
  version.version = {Incarnation{2}, Step{10}};
  version.tiers = TierBit(Tier::kMemory);
  records.versions.push_back(version);
  LoadRuns(context, records);
  EXPECT_TRUE(effects.empty());
  EXPECT_EQ(run().incarnation, Incarnation{2});
  EXPECT_TRUE(run().committed);
  EXPECT_EQ(run().record.newest_step, 10U);
  EXPECT_EQ(table.progress["gpt"].memory, version.version);
  EXPECT_EQ(table.progress["gpt"].disk, std::nullopt);
}

TEST_F(LoadRunsModule, NodesHaveALeaseAndAStopIsNotStored) {
  records.runs[0].phase = RunPhase::kStopping;
  LoadRuns(context, records);
  EXPECT_EQ(run().record.phase, RunPhase::kRunning);
  EXPECT_FALSE(node(1).attached);
  EXPECT_EQ(node(1).state_since, context.at.now + options.node_lease);
}

TEST_F(LoadRunsModule, IncidentsContinueTheirNumbers) {
  IncidentRecord incident;
  incident.id = 41;
  records.incidents.push_back(incident);
  LoadRuns(context, records);
  EXPECT_EQ(OpenIncident(context, "gpt", FailureOn(1)).id, 42U);
}

}  // namespace
}  // namespace holdfast::coord
