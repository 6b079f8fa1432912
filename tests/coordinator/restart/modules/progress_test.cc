#include "coordinator/restart/progress.h"
#include "tests/coordinator/restart/modules/run_module_test.h"

namespace holdfast::coord {
namespace {
class ProgressModule : public RunModuleTest {
 protected:
  void Commit(VersionId version, Tier tier = Tier::kMemory) {
    VersionRecord record;
    record.job = "gpt";
    record.version = version;
    RecordCommit(context, {record, TierBit(tier)});
  }
  static VersionId At(uint64_t incarnation, uint64_t step) {
    return {Incarnation{incarnation}, Step{step}};
  }
};

TEST_F(ProgressModule, TheFirstCommitOfTheLaunchEndsTheRecovery) {
  OpenIncident(context, "gpt", FailureOn(1));
  Commit(At(1, 10));  // of an earlier incarnation
  EXPECT_FALSE(run().committed);
  Commit(At(2, 11));
  EXPECT_TRUE(run().committed);
  EXPECT_EQ(run().record.fruitless, 0U);
  EXPECT_EQ(table.incidents.at(1).state, IncidentState::kRecovered);
}

TEST_F(ProgressModule, OnlyNewStepsRefillTheBudget) {
  run().record.spec.refill_versions = 2;
  run().record.budget_used = 3;
  run().record.newest_step = 20;
  Commit(At(2, 19));
  Commit(At(2, 20));
  EXPECT_EQ(run().record.budget_versions, 0U);
  EXPECT_EQ(run().record.budget_used, 3U);
  Commit(At(2, 21));
  Commit(At(2, 22));
  EXPECT_EQ(run().record.budget_used, 0U);
}

TEST_F(ProgressModule, TheDecisionShowsHowManyStepsWereLost) {
  IncidentRecord& incident = OpenIncident(context, "gpt", FailureOn(1));
  table.progress["gpt"].sealed = At(2, 30);
  LineageRecord lineage;
  lineage.job = "gpt";
  lineage.incarnation = Incarnation{3};
  lineage.run_id = run().record.run_id();
  RecordLineage(context, lineage, LineageChange::kOpened);
  EXPECT_EQ(run().incarnation, Incarnation{3});
  lineage.decision = Decision::kVersion;
  lineage.restored = At(2, 24);
  RecordLineage(context, lineage, LineageChange::kDecided);
  EXPECT_EQ(incident.lost_steps, 6);
  EXPECT_GE(incident.restore_ms, 0);
  EXPECT_EQ(incident.place_ms, incident.restore_ms) << "no later than the decision";
}

TEST_F(ProgressModule, AFreshStartLosesAllSteps) {
  IncidentRecord& incident = OpenIncident(context, "gpt", FailureOn(1));
  incident.restored = At(2, 24);  // of an attempt before
  table.progress["gpt"].sealed = At(2, 30);
  LineageRecord lineage;
  lineage.job = "gpt";
  lineage.incarnation = Incarnation{3};
  lineage.run_id = run().record.run_id();
  lineage.decision = Decision::kFresh;
  RecordLineage(context, lineage, LineageChange::kDecided);
  EXPECT_EQ(incident.restored, std::nullopt);
  EXPECT_EQ(incident.lost_steps, 30);
}

TEST_F(ProgressModule, ReportsOfFutureIncarnationsAndParityAreNoProgress) {
  NodeReported event;
  event.replicas.resize(1);
  StoredReplica& report = event.replicas[0];
  report.identity.job = "gpt";
  report.identity.version = At(9, 5);
  RecordSealed(context, event);
  report.identity.version = At(2, 40);
  report.identity.rank = ParityRank(0);
  RecordSealed(context, event);
  EXPECT_EQ(table.progress["gpt"].sealed, std::nullopt);
  report.identity.rank = Rank{0};
  RecordSealed(context, event);
  EXPECT_EQ(table.progress["gpt"].sealed, At(2, 40));
  EXPECT_EQ(table.progress["gpt"].sealed_at, context.at.now);
}

}  // namespace
}  // namespace holdfast::coord
