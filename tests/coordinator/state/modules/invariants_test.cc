// Each class of invariant, violated by data that no event makes.

#include "coordinator/state/invariants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/state/parity_plan.h"
#include "coordinator/state/passes.h"
#include "coordinator/state/retention.h"
#include "coordinator/state/versions.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

class InvariantsTest : public ModuleTest {
 protected:
  void SetUp() override {
    options.invariants = &monitor_;
    MakeJob(4);
  }
  static VersionId At(uint64_t step) { return {Incarnation{2}, Step{step}}; }
  /// Expects that exactly the expected statement was violated first.
  void ExpectViolated(const std::string& what) {
    EXPECT_TRUE(monitor_.violated());
    EXPECT_THAT(monitor_.what(), HasSubstr(what));
  }
  VersionRecord RecordOf(VersionState& version) {
    effects.clear();
    StoreVersion(context, job(), version, 0);
    return Added<PutVersion>().at(0).record;
  }

  InvariantMonitor monitor_{"coordinator"};
};

TEST_F(InvariantsTest, CorrectDataViolatesNothing) {
  MakeGroup(1);
  VersionState& version = AddCommitted(At(5), {Tier::kMemory, Tier::kDisk, Tier::kPeer});
  StoreVersion(context, job(), version, TierBit(Tier::kPeer));
  CheckParityPlan(context, job().lineage());
  CheckDomains(context, job().lineage());
  CheckGroupIndex(context, job().lineage(), *job().groups_of(Incarnation{2}));
  CheckRetention(context, job(), At(5));
  CheckJob(context, job());
  EXPECT_EQ(monitor_.what(), "");
}

TEST_F(InvariantsTest, ACommitNeedsEveryRankAtTheTier) {
  VersionState& version = Add(At(5));
  for (uint32_t i = 0; i < 4; ++i) Hold(version, Rank{i}, {i, Tier::kMemory});
  CheckCommit(context, job(), version, Tier::kMemory);
  EXPECT_FALSE(monitor_.violated());
  version.ranks[2].replicas = {};  // the counter is still four
  ASSERT_EQ(version.held_at(Tier::kMemory), 4U);
  CheckCommit(context, job(), version, Tier::kMemory);
  ExpectViolated("found == version.world");
}

TEST_F(InvariantsTest, ACommitNeedsTheDigestOfEveryShard) {
  VersionState& version = Add(At(5));
  for (uint32_t i = 0; i < 4; ++i) Hold(version, Rank{i}, {i, Tier::kMemory});
  version.ranks[3].known = false;
  CheckCommit(context, job(), version, Tier::kMemory);
  ExpectViolated("known does not hold");
}

TEST_F(InvariantsTest, CommitsComeInVersionOrder) {
  AddCommitted(At(7), {Tier::kMemory});
  VersionState& older = Add(At(5));
  for (uint32_t i = 0; i < 4; ++i) Hold(older, Rank{i}, {i, Tier::kMemory});
  CheckCommit(context, job(), older, Tier::kMemory);
  ExpectViolated("IsNewerThanCommitted");
}

TEST_F(InvariantsTest, ARecordOfACommitHasEveryDigestAndItsTier) {
  VersionState& version = AddCommitted(At(5), {Tier::kMemory});
  VersionRecord record = RecordOf(version);
  CheckVersionRecord(context, job(), record, TierBit(Tier::kMemory));
  EXPECT_FALSE(monitor_.violated());
  record.digests.pop_back();
  CheckVersionRecord(context, job(), record, TierBit(Tier::kMemory));
  ExpectViolated("record.digests.size() == record.world");
}

TEST_F(InvariantsTest, ATierIsNotCommittedAndFailed) {
  VersionState& version = AddCommitted(At(5), {Tier::kMemory});
  version.failed_tiers = TierBit(Tier::kMemory);
  StoreVersion(context, job(), version, 0);
  ExpectViolated("(record.tiers & record.failed_tiers) == 0");
}

TEST_F(InvariantsTest, ACommittedVersionIsNotAborted) {
  VersionState& version = AddCommitted(At(5), {Tier::kMemory});
  version.phase = Phase::kPending;
  AbortVersion(context, job(), version, false);
  ExpectViolated("version.tiers == 0");
}

TEST_F(InvariantsTest, ADecisionNeedsACommittedVersion) {
  Add({Incarnation{1}, Step{5}});
  job().plan.candidate = {Incarnation{1}, Step{5}};
  CheckDecision(context, job());
  ExpectViolated("version->second.committed()");
}

TEST_F(InvariantsTest, ADecisionIsMadeOnce) {
  AddCommitted({Incarnation{1}, Step{5}}, {Tier::kMemory});
  job().plan.candidate = {Incarnation{1}, Step{5}};
  CheckDecision(context, job());
  EXPECT_FALSE(monitor_.violated());
  job().lineage().decision = Decision::kFresh;
  CheckDecision(context, job());
  ExpectViolated("decision == Decision::kNone");
}

TEST_F(InvariantsTest, RetentionKeepsTheFloor) {
  AddCommitted(At(5), {Tier::kMemory});
  CheckRetention(context, job(), At(6));
  ExpectViolated("now == floor");
}

TEST_F(InvariantsTest, APlanHasEachNodeOnceAndEachRankOnce) {
  MakeGroup(1);
  CheckParityPlan(context, job().lineage());
  EXPECT_FALSE(monitor_.violated());
  job().lineage().peers[0].members[1].node = "a";
  CheckParityPlan(context, job().lineage());
  ExpectViolated("IsValidPlan(lineage)");
}

TEST_F(InvariantsTest, AReplacementIsNotYetAMember) {
  MakeGroup(1);
  job().lineage().peers[0].members[1].home = "a";
  CheckParityPlan(context, job().lineage());
  ExpectViolated("places.size() == group.members.size()");
}

TEST_F(InvariantsTest, GroupsSpreadFailureDomains) {
  LineageRecord lineage = job().lineage();
  lineage.peers.resize(2);
  const char* domains[] = {"r1", "r1", "r2", "r2"};
  for (uint32_t i = 0; i < 4; ++i) {
    PlannedMember member;
    member.node = std::string(1, static_cast<char>('a' + i));
    member.domain = domains[i];
    lineage.peers[i % 2].members.push_back(member);
  }
  CheckDomains(context, lineage);
  EXPECT_FALSE(monitor_.violated());
  std::swap(lineage.peers[0].members[1], lineage.peers[1].members[0]);
  CheckDomains(context, lineage);
  ExpectViolated("count <= share");
}

TEST_F(InvariantsTest, LookupTablesMatchThePlan) {
  MakeGroup(1);
  GroupIndex groups = *job().groups_of(Incarnation{2});
  groups.by_rank[2] = 9;
  CheckGroupIndex(context, job().lineage(), groups);
  ExpectViolated("in_range");
}

TEST_F(InvariantsTest, NoVersionIsNewerThanTheIncarnation) {
  job().versions[{Incarnation{9}, Step{1}}].id = {Incarnation{9}, Step{1}};
  job().changed = true;
  ApplyChanges(context);
  ExpectViolated("newest.incarnation <= job.incarnation");
}

}  // namespace
}  // namespace holdfast::coord
