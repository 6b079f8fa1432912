#include "coordinator/state/adoption.h"

#include <memory>

#include "tests/coordinator/state/modules/quarantine_module.h"

namespace holdfast::coord {
namespace {
class AdoptionModule : public QuarantineModule {
 protected:
  std::vector<AdoptedVersion> Adopt(bool dry_run, std::optional<uint32_t> owner = {}) {
    effects.clear();
    AdoptRequested event;
    event.request = 5;
    event.dry_run = dry_run;
    event.owner = owner;
    OnAdoptRequested(context, event);
    return Added<Reply>().at(0).adopted;
  }
};

TEST_F(AdoptionModule, ACompleteVersionIsAdoptedWithARecord) {
  Quarantine(0, V(1, 10), 0);
  Quarantine(1, V(1, 10), 1);
  EXPECT_EQ(Adopt(/*dry_run=*/true).at(0).why_not, "");
  EXPECT_EQ(job().versions.count(V(1, 10)), 0U);
  EXPECT_EQ(Adopt(/*dry_run=*/false).at(0).why_not, "");
  const VersionState& version = job().versions.at(V(1, 10));
  EXPECT_TRUE(version.committed_at(Tier::kDisk));
  EXPECT_TRUE(version.pinned);
  EXPECT_EQ(version.adopted_from, LifeId{2});
  EXPECT_EQ(Added<PutVersion>().size(), 1U);
  EXPECT_FALSE(HasQuarantined(context, "gpt"));
}

TEST_F(AdoptionModule, AUserWhoTookTheNameOfALostJobGetsItsVersionsOnlyFromAnOperator) {
  constexpr uint32_t kUser = 1001;
  job().uid = kUser;
  for (const uint32_t rank : {0U, 1U}) Quarantine(rank, V(1, 10), rank);
  EXPECT_THAT(Adopt(false).at(0).why_not, ::testing::HasSubstr("add --owner 1001"));
  EXPECT_THAT(Adopt(false, kUser + 1).at(0).why_not, ::testing::HasSubstr("add --owner 1001"));
  EXPECT_EQ(job().versions.count(V(1, 10)), 0U);
  EXPECT_EQ(Adopt(false, kUser).at(0).why_not, "");
  EXPECT_EQ(job().versions.count(V(1, 10)), 1U);
}

TEST_F(AdoptionModule, AJobOfThatLifeKeepsItsOwner) {
  job().uid = 1001;
  job().lineages[Incarnation{1}].life = LifeId{2};  // as after the restore of a backup
  for (const uint32_t rank : {0U, 1U}) Quarantine(rank, V(2, 10), rank);
  EXPECT_THAT(Adopt(true).at(0).why_not, ::testing::Not(::testing::HasSubstr("--owner")));
}

TEST_F(AdoptionModule, AVersionIsCompleteIfItsParityGroupDecodesTheMissingShards) {
  QuarantineGroup(/*parity=*/1, /*lost=*/{2});
  const AdoptedVersion adopted = Adopt(/*dry_run=*/false).at(0);
  EXPECT_EQ(adopted.why_not, "");
  EXPECT_EQ(adopted.ranks, 3U);
  EXPECT_EQ(adopted.decoded, 1U);
  const VersionState& version = job().versions.at(V(1, 10));
  EXPECT_EQ(version.ranks[2].digest, H(V(1, 10), 2, Tier::kDisk).digest);
  EXPECT_TRUE(IsRestorable(job(), version));
  EXPECT_FALSE(HasQuarantined(context, "gpt"));
  // After a restart the remaining parity counts by its digests, although it was never committed.
  const VersionRecord record = Added<PutVersion>().at(0).record;
  ASSERT_EQ(record.parity_digests.size(), 4U);
  EXPECT_EQ(record.parity_digests[0], H(V(1, 10), ParityRank(0).value, Tier::kDisk).digest);
  EXPECT_EQ(record.parity_digests[2], 0U);
  ASSERT_EQ(Added<PutLineage>().size(), 1U);
  EXPECT_EQ(Added<PutLineage>()[0].record.peers.at(0).members.size(), 4U);
}

TEST_F(AdoptionModule, ParityOfOtherBytesIsNotUsed) {
  QuarantineGroup(/*parity=*/1, /*lost=*/{2}, /*salt=*/1);
  EXPECT_THAT(Adopt(/*dry_run=*/false).at(0).why_not,
              ::testing::HasSubstr("rank 0's shard on node a is not the one that the parity on"));
  // Without a missing shard the version is adopted as it is, without parity groups.
  QuarantineGroup(/*parity=*/1, /*lost=*/{}, /*salt=*/1);
  EXPECT_EQ(Adopt(/*dry_run=*/false).at(0).why_not, "");
  EXPECT_TRUE(job().lineages.at(Incarnation{1}).peers.empty());
}

TEST_F(AdoptionModule, ParityThatIsListedLaterCounts) {
  QuarantineGroup(/*parity=*/1, /*lost=*/{2});
  const std::pair<ShardKey, Tier> place{{"gpt", V(1, 10), ParityRank(3)}, Tier::kDisk};
  StoredReplica late = cluster.nodes[3].other_lives.at(place);
  cluster.nodes[3].other_lives.erase(place);
  cluster.nodes[3].other_lives.erase({{"gpt", V(1, 10), Rank{3}}, Tier::kDisk});
  EXPECT_THAT(Adopt(/*dry_run=*/false).at(0).why_not, ::testing::HasSubstr("lacks"));
  QuarantineGroup(/*parity=*/1, /*lost=*/{2});
  cluster.nodes[3].other_lives.erase(place);
  EXPECT_THAT(Adopt(/*dry_run=*/false).at(0).why_not, ::testing::HasSubstr("lacks"));
  QuarantineGroup(/*parity=*/2, /*lost=*/{2});
  cluster.nodes[3].other_lives.erase(place);
  EXPECT_EQ(Adopt(/*dry_run=*/false).at(0).why_not, "");
  EXPECT_TRUE(CountsInThisLife(context, late)) << "it lists the shards of the adopted version";
  ShardGroup other = *late.group;
  other.shards[0].digest += 1;
  late.group = std::make_shared<const ShardGroup>(other);
  EXPECT_FALSE(CountsInThisLife(context, late));
}

TEST_F(AdoptionModule, ARebuildAdoptsVersionsOnceTheyAreComplete) {
  Quarantine(0, V(1, 10), 0);
  Quarantine(0, V(1, 11), 0);
  Quarantine(1, V(1, 11), 1);
  AdoptWhatIsComplete(context);
  EXPECT_TRUE(job().versions.empty()) << "only an operator adopts, unless the options direct it";
  options.rebuild = true;
  AdoptWhatIsComplete(context);
  EXPECT_EQ(job().versions.count(V(1, 10)), 0U) << "a shard is missing";
  EXPECT_TRUE(IsRestorable(job(), job().versions.at(V(1, 11))));
  Quarantine(1, V(1, 10), 1);
  AdoptWhatIsComplete(context);
  EXPECT_TRUE(IsRestorable(job(), job().versions.at(V(1, 10))));
  EXPECT_TRUE(Added<Reply>().empty()) << "no call waits";
}

// The store was lost twice, and each life numbered a version alike. Each of the two nodes that are
// left has another rank's shard, of another life. The digests differ, as the bytes do.
TEST_F(AdoptionModule, ARebuildMixesNoShardsOfTwoVersionsWithTheSameNumber) {
  options.rebuild = true;
  const auto hold = [&](NodeIndex node, uint32_t rank, uint64_t life) {
    StoredReplica report = H(V(1, 10), rank, Tier::kDisk);
    report.life = LifeId{life};
    report.digest += life;
    QuarantineReplica(context, node, report);
  };
  hold(0, 0, 2);
  hold(1, 1, 3);
  AdoptWhatIsComplete(context);
  EXPECT_TRUE(job().versions.empty());
  const auto listed = Adopt(/*dry_run=*/true);
  ASSERT_EQ(listed.size(), 2U) << "each life's version is listed with its reason";
  for (const AdoptedVersion& one : listed) {
    EXPECT_EQ(one.ranks, 1U);
    EXPECT_THAT(one.why_not, ::testing::HasSubstr("has none"));
  }
  // The other shard of one of them is found.
  hold(0, 1, 2);
  AdoptWhatIsComplete(context);
  const VersionState& version = job().versions.at(V(1, 10));
  EXPECT_TRUE(IsRestorable(job(), version));
  EXPECT_EQ(version.adopted_from, LifeId{2});
  EXPECT_EQ(version.ranks[0].digest, H(V(1, 10), 0, Tier::kDisk).digest + 2);
  EXPECT_EQ(version.ranks[1].digest, H(V(1, 10), 1, Tier::kDisk).digest + 2);
}

TEST_F(AdoptionModule, TheDigestsOfAllRanksProveACommit) {
  for (const uint32_t rank : {0U, 1U}) Quarantine(rank, V(1, 10), rank);
  EXPECT_EQ(Adopt(true).at(0).commit, CommitEvidence::kNone) << "no node knows a commit";
  // The ranks are in order, and all of the world count.
  EXPECT_NE(CommitDigest(std::vector{DigestOf(0), DigestOf(1)}),
            CommitDigest(std::vector{DigestOf(1), DigestOf(0)}));
  EXPECT_NE(CommitDigest(std::vector{DigestOf(0)}), CommitDigest(std::vector{DigestOf(0), 0UL}));
  // Of another life, or another version: no evidence.
  cluster.nodes[0].commits = {Committed({DigestOf(0), DigestOf(1)}, 3)};
  EXPECT_EQ(Adopt(true).at(0).commit, CommitEvidence::kNone);
  // One node is enough, and it need not have a shard.
  cluster.nodes[InternNode(context, "z")].commits = {Committed({DigestOf(0), DigestOf(1)})};
  EXPECT_EQ(Adopt(true).at(0).commit, CommitEvidence::kProven);
  const AdoptedVersion adopted = Adopt(false).at(0);
  EXPECT_EQ(adopted.why_not, "");
  EXPECT_EQ(adopted.commit, CommitEvidence::kProven);
  EXPECT_EQ(Added<PutVersion>().at(0).record.commit_digest,
            CommitDigest(std::vector{DigestOf(0), DigestOf(1)}));
}

TEST_F(AdoptionModule, AVersionWithOtherBytesThanTheCommittedOnesIsNotAdopted) {
  options.rebuild = true;
  for (const uint32_t rank : {0U, 1U}) Quarantine(rank, V(1, 10), rank);
  cluster.nodes[1].commits = {Committed({DigestOf(0), DigestOf(1) + 1})};
  AdoptWhatIsComplete(context);
  EXPECT_EQ(job().versions.count(V(1, 10)), 0U);
  AdoptedVersion listed = Adopt(false).at(0);
  EXPECT_EQ(listed.commit, CommitEvidence::kContradicted);
  EXPECT_THAT(listed.why_not, ::testing::HasSubstr("are not the committed ones"));
  EXPECT_THAT(listed.why_not, ::testing::HasSubstr("node b knows the commit"));
  // Two nodes that contradict each other prove nothing.
  cluster.nodes[0].commits = {Committed({DigestOf(0), DigestOf(1)})};
  listed = Adopt(false).at(0);
  EXPECT_EQ(listed.commit, CommitEvidence::kContradicted);
  EXPECT_THAT(listed.why_not, ::testing::HasSubstr("nodes a and b know commits of it"));
  EXPECT_TRUE(job().versions.empty());
}

TEST_F(AdoptionModule, AnIncarnationOfThisLifeIsNotReplaced) {
  Quarantine(0, V(2, 10), 0);
  Quarantine(1, V(2, 10), 1);
  EXPECT_THAT(Adopt(false).at(0).why_not, ::testing::HasSubstr("has its own incarnation 2"));
}

}  // namespace
}  // namespace holdfast::coord
