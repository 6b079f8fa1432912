#include "coordinator/state/repair.h"
#include "coordinator/state/prepares.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class RepairModule : public ModuleTest {
 protected:
  void SetUp() override {
    MakeJob(4);
    MakeGroup(1);
    job().newest_seen = Step{10};  // the job trains, so no restore is pending
    AddCommitted(V(2, 10), {Tier::kMemory, Tier::kPeer, Tier::kDisk});
    AddParity(Version(), Tier::kDisk);
  }
  VersionState& Version() { return job().versions.at(V(2, 10)); }
};

TEST_F(RepairModule, AShardThatItsNodeHasInMemoryIsCopiedAtOnce) {
  AdvanceRepairs(context, job());
  EXPECT_TRUE(Added<Send>().empty());
  Version().RemoveReplica(Rank{1}, {1, Tier::kDisk});
  AdvanceRepairs(context, job());
  ASSERT_EQ(SentTo<PrepareShard>(1).size(), 1U);
  EXPECT_EQ(SentTo<PrepareShard>(1)[0].into, Tier::kDisk);
  EXPECT_EQ(SentTo<PrepareShard>(1)[0].tier, Tier::kMemory);
  EXPECT_EQ(SentTo<PrepareShard>(1)[0].source_node, "b");
}

TEST_F(RepairModule, ADecodeWaitsForTheGraceAndTakesOneAtATime) {
  Version().RemoveReplica(Rank{1}, {1, Tier::kDisk});
  Version().RemoveReplica(Rank{1}, {1, Tier::kMemory});
  AdvanceRepairs(context, job());
  EXPECT_TRUE(SentTo<PrepareShard>(1).empty());
  Pass(options.repair_grace);
  AdvanceRepairs(context, job());
  ASSERT_EQ(SentTo<PrepareShard>(1).size(), 1U);
  EXPECT_EQ(SentTo<PrepareShard>(1)[0].tier, Tier::kPeer);
  AdvanceRepairs(context, job());
  EXPECT_EQ(SentTo<PrepareShard>(1).size(), 1U);
  const uint64_t request = SentTo<PrepareShard>(1)[0].request.value();
  OnRepaired(context, job(), *TakePrepare(context, 1, request), {request, Status::Ok()});
  EXPECT_EQ(Added<Repaired>().size(), 1U);
}

TEST_F(RepairModule, ADamagedShardHasNoGrace) {
  Version().RemoveReplica(Rank{1}, {1, Tier::kDisk});
  Version().RemoveReplica(Rank{1}, {1, Tier::kMemory});
  RecordDamage(context, job(), Version(), Rank{1}, {1, Tier::kDisk}, "bad").readable = true;
  AdvanceRepairs(context, job());
  EXPECT_EQ(SentTo<PrepareShard>(1).size(), 1U);
}

TEST_F(RepairModule, AFailedRepairPausesLongerEachTime) {
  Version().RemoveReplica(Rank{1}, {1, Tier::kDisk});
  for (const int seconds : {1, 2, 4}) {
    AdvanceRepairs(context, job());
    const uint64_t request = SentTo<PrepareShard>(1).back().request.value();
    OnRepaired(context, job(), *TakePrepare(context, 1, request),
               {request, UnavailableError("busy")});
    const size_t sent = SentTo<PrepareShard>(1).size();
    Pass(std::chrono::seconds(seconds) - std::chrono::milliseconds(1));
    AdvanceRepairs(context, job());
    EXPECT_EQ(SentTo<PrepareShard>(1).size(), sent);
    Pass(std::chrono::milliseconds(1));
  }
}

// The node has the shard, and its report does not count, as that of parity of another life whose
// group is not described yet. The repair would be sent again with each report.
TEST_F(RepairModule, ARepairWhoseReplicaDoesNotCountPauses) {
  Version().RemoveReplica(Rank{1}, {1, Tier::kDisk});
  for (const int seconds : {1, 2}) {
    AdvanceRepairs(context, job());
    const size_t sent = SentTo<PrepareShard>(1).size();
    const uint64_t request = SentTo<PrepareShard>(1).back().request.value();
    OnRepaired(context, job(), *TakePrepare(context, 1, request), {request, Status::Ok()});
    Pass(std::chrono::seconds(seconds) - std::chrono::milliseconds(1));
    AdvanceRepairs(context, job());
    EXPECT_EQ(SentTo<PrepareShard>(1).size(), sent);
    Pass(std::chrono::milliseconds(1));
  }
  AdvanceRepairs(context, job());
  EXPECT_EQ(SentTo<PrepareShard>(1).size(), 3U);
  // Once the replica counts, the next repair of the shard is not delayed.
  Version().AddReplica(Rank{1}, {1, Tier::kDisk});
  AdvanceRepairs(context, job());
  Version().RemoveReplica(Rank{1}, {1, Tier::kDisk});
  AdvanceRepairs(context, job());
  EXPECT_EQ(SentTo<PrepareShard>(1).size(), 4U);
}

TEST_F(RepairModule, ARestoreComesFirst) {
  Version().RemoveReplica(Rank{1}, {1, Tier::kDisk});
  job().plan.Wait({7, Rank{0}, context.at.now});
  AdvanceRepairs(context, job());
  EXPECT_TRUE(Added<Send>().empty());
  EXPECT_TRUE(job().repair_due);
}

TEST_F(RepairModule, ANodeThatAttachesAgainGetsItsDirectiveAgain) {
  Version().RemoveReplica(Rank{1}, {1, Tier::kDisk});
  AdvanceRepairs(context, job());
  CancelRepairsOf(context, 1);
  EXPECT_TRUE(job().repair_due);
  AdvanceRepairs(context, job());
  EXPECT_EQ(SentTo<PrepareShard>(1).size(), 2U);
}

}  // namespace
}  // namespace holdfast::coord
