#pragma once

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "coordinator/state/lives.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {

/// Quarantined replicas of another life of the store, on the nodes of job "gpt".
class QuarantineModule : public ModuleTest {
 protected:
  void SetUp() override {
    options.life = LifeId{1};
    ModuleTest::SetUp();
    for (auto& [incarnation, lineage] : job().lineages) lineage.life = options.life;
    job().lineages.erase(Incarnation{1});
  }
  /// Quarantines what a job of four ranks on nodes a to d left, in one parity group. `lost` nodes
  /// left nothing. `salt` changes the digest of rank 0 that the parity shards list.
  void QuarantineGroup(uint32_t parity, std::set<NodeIndex> lost, uint64_t salt = 0) {
    MakeJob(4);
    job().lineages.erase(Incarnation{1});
    job().lineages.at(Incarnation{2}).life = options.life;
    std::vector<PlanMember> members;
    std::vector<ListedShard> shards;
    for (uint32_t i = 0; i < 4; ++i) {
      PlanMember member;
      member.node = cluster.nodes[i].name;
      member.number = i;
      member.ranks = {{Rank{i}, 4096}};
      members.push_back(member);
      const StoredReplica shard = H(V(1, 10), i, Tier::kDisk);
      shards.push_back({Rank{i}, shard.digest + (i == 0 ? salt : 0), shard.image_bytes});
    }
    const auto group = std::make_shared<const ShardGroup>(
        ShardGroup{GroupPlan::Make(members, parity).value(), shards});
    for (NodeIndex node = 0; node < 4; ++node) {
      if (lost.contains(node)) continue;
      for (const uint32_t rank : {node, ParityRank(node).value}) {
        StoredReplica report = H(V(1, 10), rank, Tier::kDisk);
        report.identity.world = 4;
        report.life = LifeId{2};
        if (IsParity(Rank{rank})) report.group = group;
        QuarantineReplica(context, node, report);
      }
    }
  }
  void Quarantine(NodeIndex node, VersionId version, uint32_t rank, uint64_t life = 2) {
    StoredReplica report = H(version, rank, Tier::kDisk);
    report.life = LifeId{life};
    QuarantineReplica(context, node, report);
  }
};

/// The commit of 1-10, as a node that knows it lists it at its attach.
inline VersionCommit Committed(std::vector<uint64_t> digests, uint64_t life = 2) {
  const auto world = static_cast<uint32_t>(digests.size());
  return {"gpt", LifeId{life}, V(1, 10), world, CommitDigest(digests)};
}
inline uint64_t DigestOf(uint32_t rank) { return H(V(1, 10), rank, Tier::kDisk).digest; }

}  // namespace holdfast::coord
