#include "coordinator/state/adoptable.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/coordinator/state/modules/quarantine_module.h"

namespace holdfast::coord {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AdoptableModule : public QuarantineModule {
 protected:
  /// Returns the only quarantined version.
  Adoptable Find() {
    std::vector<Adoptable> all = FindAdoptable(context, {});
    EXPECT_EQ(all.size(), 1U);
    return all.empty() ? Adoptable() : std::move(all.front());
  }
};

TEST_F(AdoptableModule, AVersionWithoutAllRanksOrWithContradictingReplicasIsIncomplete) {
  Quarantine(0, V(1, 10), 0);
  EXPECT_THAT(Find().incomplete, HasSubstr("rank 1 has none"));
  Quarantine(1, V(1, 10), 1);
  StoredReplica other = H(V(1, 10), 1, Tier::kMemory);
  other.life = LifeId{2};
  other.digest += 1;
  QuarantineReplica(context, 0, other);
  EXPECT_THAT(Find().incomplete, HasSubstr("is not the same"));
}

TEST_F(AdoptableModule, MoreLostNodesThanParityAreNamed) {
  QuarantineGroup(/*parity=*/1, /*lost=*/{1, 2});
  const std::string why = Find().incomplete;
  EXPECT_THAT(why, HasSubstr("2 of 4 ranks have a replica"));
  EXPECT_THAT(why, HasSubstr("ranks 1, 2 have none"));
  EXPECT_THAT(why, HasSubstr("can replace 1 of its 4 nodes"));
  EXPECT_THAT(why, HasSubstr("rank-1 of node b, parity-1 of node b, rank-2 of node c"));
  QuarantineGroup(/*parity=*/2, /*lost=*/{1, 2});
  EXPECT_EQ(Find().incomplete, "");
}

TEST_F(AdoptableModule, ParityThatNoAgentHasDescribedIsNotUsed) {
  QuarantineGroup(/*parity=*/1, /*lost=*/{2});
  for (Node& node : cluster.nodes) {
    for (auto& [place, report] : node.other_lives) report.group = nullptr;
  }
  EXPECT_THAT(Find().incomplete, HasSubstr("no agent has described its parity yet"));
}

TEST_F(AdoptableModule, ACommitOfMoreRanksThanTheSealsNameContradicts) {
  for (const uint32_t rank : {0U, 1U}) Quarantine(rank, V(1, 10), rank);
  cluster.nodes[0].commits = {Committed({DigestOf(0), DigestOf(1), 7})};
  const Adoptable listed = Find();
  EXPECT_EQ(listed.commit, CommitEvidence::kContradicted);
  EXPECT_THAT(listed.incomplete, HasSubstr("name 2 ranks, but node a"));
}

TEST_F(AdoptableModule, ACommittedVersionThatLacksShardsIsListedAsCommitted) {
  Quarantine(0, V(1, 10), 0);
  cluster.nodes[0].commits = {Committed({DigestOf(0), DigestOf(1)})};
  const Adoptable listed = Find();
  EXPECT_EQ(listed.commit, CommitEvidence::kCommitted);
  EXPECT_THAT(listed.incomplete, HasSubstr("rank 1 has none"));
}

TEST_F(AdoptableModule, DecodedShardsCountForTheProof) {
  QuarantineGroup(/*parity=*/1, /*lost=*/{2});
  cluster.nodes[0].commits = {Committed({DigestOf(0), DigestOf(1), DigestOf(2), DigestOf(3)})};
  EXPECT_EQ(Find().commit, CommitEvidence::kProven);
  cluster.nodes[0].commits = {Committed({DigestOf(0), DigestOf(1), DigestOf(2) + 1, DigestOf(3)})};
  EXPECT_EQ(Find().commit, CommitEvidence::kContradicted);
}

TEST_F(AdoptableModule, VersionsAreSortedByJobWithTheNewestFirst) {
  for (const uint64_t step : {10, 12, 11}) Quarantine(0, V(1, step), 0);
  StoredReplica other = H(V(1, 5), 0, Tier::kMemory);
  other.identity.job = "bert";
  other.life = LifeId{3};
  QuarantineReplica(context, 0, other);
  const auto named = [this](const std::string& job, uint64_t life) {
    AdoptRequested event;
    event.job = job;
    event.life = LifeId{life};
    std::vector<std::string> names;
    for (const Adoptable& one : FindAdoptable(context, event)) {
      names.push_back(one.job + "/" + ToString(one.version));
    }
    return names;
  };
  EXPECT_THAT(named("", 0), ElementsAre("bert/1-5", "gpt/1-12", "gpt/1-11", "gpt/1-10"));
  EXPECT_THAT(named("gpt", 0), ElementsAre("gpt/1-12", "gpt/1-11", "gpt/1-10"));
  EXPECT_THAT(named("", 3), ElementsAre("bert/1-5"));
  EXPECT_THAT(named("gpt", 3), IsEmpty());
}

TEST_F(AdoptableModule, ReplicasCountAtTheirTierAndDamagedOnesNot) {
  Quarantine(0, V(1, 10), 0);
  Quarantine(1, V(1, 10), 1);
  StoredReplica in_memory = H(V(1, 10), 1, Tier::kMemory);
  in_memory.life = LifeId{2};
  QuarantineReplica(context, 1, in_memory);
  EXPECT_EQ(Find().held_at(Tier::kDisk), 2U);
  EXPECT_EQ(Find().held_at(Tier::kMemory), 1U);
  cluster.nodes[0].other_lives.begin()->second.damage = {{0, 1}};
  EXPECT_THAT(Find().incomplete, HasSubstr("rank 0 has none"));
}

TEST_F(AdoptableModule, AMemberThatANodeReplacedIsDecodedWithItsReplacement) {
  QuarantineGroup(/*parity=*/1, /*lost=*/{2});
  // Node z has taken the place of node b, with its shard and its parity.
  const NodeIndex home = MakeNode("z");
  std::swap(cluster.nodes[home].other_lives, cluster.nodes[1].other_lives);
  const Adoptable one = Find();
  EXPECT_EQ(one.incomplete, "");
  EXPECT_EQ(one.decoded.count(2), 1U);
  EXPECT_EQ(one.plan.at(0).members.at(1).home, "z");
  EXPECT_EQ(one.plan.at(0).members.at(0).home, "") << "it is where the plan names it";
}

TEST_F(AdoptableModule, ParityShardsThatDescribeDifferentGroupsAreNotUsed) {
  QuarantineGroup(/*parity=*/1, /*lost=*/{2});
  StoredReplica& parity =
      cluster.nodes[3].other_lives.at({{"gpt", V(1, 10), ParityRank(3)}, Tier::kDisk});
  ShardGroup other = *parity.group;
  other.shards[2].digest += 1;
  parity.group = std::make_shared<const ShardGroup>(other);
  EXPECT_THAT(Find().incomplete,
              HasSubstr("parity-3 on node d and the parity on node a describe different groups"));
}

TEST_F(AdoptableModule, TheParityMustDescribeEveryRank) {
  QuarantineGroup(/*parity=*/1, /*lost=*/{2});
  for (Node& node : cluster.nodes) {
    for (auto& [place, report] : node.other_lives) report.identity.world = 5;
  }
  EXPECT_THAT(Find().incomplete, HasSubstr("does not describe all of its groups"));
}

TEST_F(AdoptableModule, GroupsThatContradictTheStoreAreNotUsed) {
  QuarantineGroup(/*parity=*/1, /*lost=*/{2});
  LineageRecord& lineage = job().lineages[Incarnation{1}];
  lineage.world = 4;
  lineage.peers = Find().plan;
  ASSERT_FALSE(lineage.peers.empty());
  EXPECT_EQ(Find().incomplete, "");
  lineage.peers[0].parity = 2;
  EXPECT_THAT(Find().incomplete, HasSubstr("the store has other parity groups"));
}

TEST_F(AdoptableModule, AtMostSixNamesAreListed) {
  StoredReplica report = H(V(1, 10), 0, Tier::kDisk, /*world=*/9);
  report.life = LifeId{2};
  QuarantineReplica(context, 0, report);
  EXPECT_THAT(Find().incomplete, HasSubstr("ranks 1, 2, 3, 4, 5, 6, … have none"));
}

}  // namespace
}  // namespace holdfast::coord
