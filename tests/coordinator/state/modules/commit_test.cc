#include "coordinator/state/commit.h"
#include "coordinator/state/versions.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class CommitModule : public ModuleTest {
 protected:
  void Store(NodeIndex node, StoredReplica report, bool inventory = false) {
    OnReplicasStored(context, node, {std::move(report)}, inventory);
  }
  std::vector<VersionId> Commits(Tier tier) {
    std::vector<VersionId> versions;
    for (const PutVersion& put : Added<PutVersion>()) {
      if (put.committed_tier_bit == TierBit(tier)) versions.push_back(put.record.version);
    }
    return versions;
  }
};

TEST_F(CommitModule, AVersionIsCommittedWhenEveryRankHasAReplicaAtTheTier) {
  Store(0, H(V(2, 10), 0, Tier::kMemory));
  Store(1, H(V(2, 10), 1, Tier::kDisk));
  EXPECT_TRUE(Commits(Tier::kMemory).empty());
  Store(1, H(V(2, 10), 1, Tier::kMemory));
  EXPECT_THAT(Commits(Tier::kMemory), ::testing::ElementsAre(V(2, 10)));
  EXPECT_TRUE(Commits(Tier::kDisk).empty());
  EXPECT_TRUE(job().versions.at(V(2, 10)).committed_at(Tier::kMemory));
}

TEST_F(CommitModule, ACommitHasADigestOverAllRanks) {
  Store(1, H(V(2, 10), 1, Tier::kMemory));
  EXPECT_EQ(job().versions.at(V(2, 10)).commit_digest, 0U) << "not committed yet";
  Store(0, H(V(2, 10), 0, Tier::kMemory));
  const VersionRecord record = Added<PutVersion>().at(0).record;
  const std::vector<uint64_t> digests = {H(V(2, 10), 0, Tier::kMemory).digest,
                                         H(V(2, 10), 1, Tier::kMemory).digest};
  EXPECT_EQ(record.digests, digests);
  EXPECT_EQ(record.commit_digest, CommitDigest(digests));
  options.life = LifeId{7};
  const VersionCommit commit = CommitOf(context, job(), job().versions.at(V(2, 10)));
  EXPECT_EQ(commit, (VersionCommit{"gpt", LifeId{7}, V(2, 10), 2, CommitDigest(digests)}));
}

TEST_F(CommitModule, AnOldIncarnationCommitsNothingNewButReachesMoreTiers) {
  Store(0, H(V(1, 10), 0, Tier::kDisk));
  Store(1, H(V(1, 10), 1, Tier::kDisk));
  EXPECT_TRUE(Commits(Tier::kDisk).empty());
  VersionState& version = AddCommitted(V(1, 11), {Tier::kMemory});
  for (uint32_t rank : {0U, 1U}) {
    version.ranks[rank].digest = H(V(1, 11), rank, Tier::kDisk).digest;
    Store(rank, H(V(1, 11), rank, Tier::kDisk));
  }
  EXPECT_THAT(Commits(Tier::kDisk), ::testing::ElementsAre(V(1, 11)));
}

TEST_F(CommitModule, AnotherDigestDoesNotCount) {
  Store(0, H(V(2, 10), 0, Tier::kMemory));
  StoredReplica other = H(V(2, 10), 0, Tier::kDisk);
  other.digest += 1;
  Store(1, other);
  EXPECT_EQ(job().versions.at(V(2, 10)).ranks[0].replicas.size(), 1U);
  EXPECT_EQ(Added<Finding>().at(0).what.code(), ErrorCode::kDataLoss);
}

TEST_F(CommitModule, ARankThatSkipsAStepAbortsIt) {
  Store(0, H(V(2, 10), 0, Tier::kMemory));
  Store(1, H(V(2, 11), 1, Tier::kMemory));
  EXPECT_EQ(job().versions.at(V(2, 10)).phase, Phase::kAborted);
  Store(0, H(V(2, 11), 0, Tier::kMemory));
  EXPECT_THAT(Commits(Tier::kMemory), ::testing::ElementsAre(V(2, 11)));
}

TEST_F(CommitModule, AFailureInMemoryAbortsAndOneOnDiskOnlyFailsTheTier) {
  Store(0, H(V(2, 10), 0, Tier::kMemory));
  OnReplicaFailed(context, 1, {{"gpt", V(2, 10), Rank{1}}, Tier::kDisk, "full"});
  EXPECT_EQ(job().versions.at(V(2, 10)).phase, Phase::kPending);
  EXPECT_EQ(job().versions.at(V(2, 10)).failed_tiers, TierBit(Tier::kDisk));
  OnReplicaFailed(context, 1, {{"gpt", V(2, 10), Rank{1}}, Tier::kMemory, "no slot"});
  EXPECT_EQ(job().versions.at(V(2, 10)).phase, Phase::kAborted);
}

TEST_F(CommitModule, ParityCountsFromItsPlannedNodeOnly) {
  MakeGroup(1);
  VersionState& version = AddCommitted(V(2, 10), {Tier::kMemory});
  const auto& members = job().groups_of(Incarnation{2})->members;
  const NodeIndex planned = members[0].node;
  Store(1 - planned, P(V(2, 10), 0, Tier::kMemory, 2));
  EXPECT_TRUE(version.parity[0].replicas.empty());
  Store(planned, P(V(2, 10), 0, Tier::kMemory, 2));
  Store(members[1].node, P(V(2, 10), 1, Tier::kMemory, 2));
  EXPECT_THAT(Commits(Tier::kPeer), ::testing::ElementsAre(V(2, 10)));
}

TEST_F(CommitModule, ADamagedReplicaDoesNotCountUntilItIsReportedGood) {
  StoredReplica bad = H(V(2, 10), 0, Tier::kMemory);
  bad.damage = "chunk 1";
  Store(0, bad);
  Store(1, H(V(2, 10), 1, Tier::kMemory));
  EXPECT_TRUE(Commits(Tier::kMemory).empty());
  Store(0, H(V(2, 10), 0, Tier::kMemory), /*inventory=*/true);  // the same bytes, listed again
  EXPECT_TRUE(Commits(Tier::kMemory).empty());
  Store(0, H(V(2, 10), 0, Tier::kMemory));
  EXPECT_THAT(Commits(Tier::kMemory), ::testing::ElementsAre(V(2, 10)));
}

TEST_F(CommitModule, ARemovedReplicaOfACommittedVersionIsRepaired) {
  AddCommitted(V(2, 10), {Tier::kDisk});
  OnReplicaRemoved(context, 1, RemovedReplica{{"gpt", V(2, 10), Rank{1}}, Tier::kDisk});
  EXPECT_TRUE(job().versions.at(V(2, 10)).ranks[1].replicas.empty());
  EXPECT_TRUE(job().repair_due);
}

TEST_F(CommitModule, AReplicaOfAnUnknownIncarnationIsQuarantined) {
  Store(0, H(V(7, 10), 0, Tier::kDisk));
  EXPECT_EQ(cluster.nodes[0].other_lives.size(), 1U);
  EXPECT_EQ(HighestReported(context, "gpt"), Incarnation{7});
}

}  // namespace
}  // namespace holdfast::coord
