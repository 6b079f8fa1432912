#pragma once

#include <string>
#include <vector>

#include "coordinator/state/cluster.h"
#include "coordinator/state/parity_plan.h"
#include "coordinator/state/versions.h"
#include "tests/coordinator/state/harness.h"

namespace holdfast::coord {

/// The data of a coordinator, built by hand, for tests of one module. Incarnation 2 of job "gpt"
/// runs on attached nodes "a", "b", …, with rank i on node i.
class ModuleTest : public ::testing::Test {
 protected:
  void SetUp() override { MakeJob(2); }

  /// Replaces all data by a job of `world` ranks on as many nodes.
  void MakeJob(uint32_t world) {
    cluster = {};
    for (uint32_t i = 0; i < world; ++i) MakeNode(std::string(1, static_cast<char>('a' + i)));
    Job& made = cluster.jobs["gpt"];
    made.name = "gpt";
    made.joined_at = made.alive_at = made.newest_at = context.at.now;
    for (uint64_t number : {1, 2}) {
      LineageRecord& lineage = made.lineages[Incarnation{number}];
      lineage.job = "gpt";
      lineage.incarnation = made.incarnation = Incarnation{number};
      lineage.run_id = "run-" + std::to_string(number);
      lineage.world = world;
    }
    for (NodeIndex node = 0; node < world; ++node) {
      made.rank_nodes.push_back(node);
      made.slot_bytes.push_back(4096);
      made.nodes_now.insert(node);
      made.subscribers.insert(node);
    }
    made.ranks_joined = world;
  }
  NodeIndex MakeNode(const std::string& name) {
    const NodeIndex index = InternNode(context, name);
    Node& node = cluster.nodes[index];
    node.attached = true;
    node.attach = 100 + index;
    node.agent_start = 1;
    node.data_address = "unix:/" + name;
    node.peer_address = "unix:/" + name + ".peer";
    node.seen = context.at.now;
    node.health.disk_free_percent = 50;
    return index;
  }
  /// Makes the node away; its replicas then do not count.
  void Lose(NodeIndex node) {
    cluster.nodes[node].attached = false;
    cluster.nodes[node].lost_at = context.at.now;
    for (auto& [id, version] : job().versions) {
      version.RemoveReplicasIf([node](const Replica& replica) { return replica.node == node; });
    }
  }
  Job& job() { return cluster.jobs.at("gpt"); }

  /// Puts all nodes into one parity group.
  void MakeGroup(uint32_t parity) {
    options.peers.groups = {static_cast<uint32_t>(cluster.nodes.size()), parity};
    PlanPeers(context, job());
    effects.clear();
  }
  VersionState& Add(VersionId id) {
    return CreateVersion(job(), id, job().lineages.at(id.incarnation).world, Phase::kPending);
  }
  /// Adds a version that is committed at the tiers, with all its replicas there.
  VersionState& AddCommitted(VersionId id, std::vector<Tier> tiers) {
    VersionState& version = Add(id);
    version.phase = Phase::kCommitted;
    version.recorded = true;
    for (const Tier tier : tiers) {
      version.tiers |= TierBit(tier);
      if (tier == Tier::kPeer) {
        AddParity(version, Tier::kMemory);
        continue;
      }
      for (uint32_t i = 0; i < version.world; ++i) Hold(version, Rank{i}, {i, tier});
    }
    return version;
  }
  void AddParity(VersionState& version, Tier tier) {
    for (uint32_t number = 0; number < version.parity.size(); ++number) {
      const auto& members = job().groups_of(version.id.incarnation)->members;
      Hold(version, ParityRank(number), {members[number].node, tier});
    }
  }
  void Hold(VersionState& version, Rank rank, Replica replica) {
    RankShard& shard = *version.Shard(rank);
    shard.known = true;
    shard.digest = 1000 + rank.value;
    shard.image_bytes = 4096;
    version.AddReplica(rank, replica);
  }
  void Pass(Clock::Duration time) { context.at.now += time; }

  /// Returns the effects of one kind that were added so far.
  template <typename E>
  std::vector<E> Added() const {
    std::vector<E> found;
    for (const Effect& effect : effects) {
      if (const auto* one = std::get_if<E>(&effect)) found.push_back(*one);
    }
    return found;
  }
  /// Returns the directives of one kind to a node.
  template <typename D>
  std::vector<D> SentTo(NodeIndex node) const {
    std::vector<D> found;
    for (const Send& send : Added<Send>()) {
      const auto* one = std::get_if<D>(&send.directive);
      if (send.attach == cluster.nodes[node].attach && one != nullptr) found.push_back(*one);
    }
    return found;
  }

  StateOptions options;
  Cluster cluster;
  std::vector<Effect> effects;
  Context context{options, {Clock::TimePoint(std::chrono::hours(1)), 1000}, cluster, effects};
};

}  // namespace holdfast::coord
