#include "coordinator/state/job.h"

#include <algorithm>

namespace holdfast::coord {

RankShard* VersionState::Shard(Rank rank) {
  std::vector<RankShard>& shards = IsParity(rank) ? parity : ranks;
  const uint32_t index = IsParity(rank) ? ParityNode(rank) : rank.value;
  return index < shards.size() ? &shards[index] : nullptr;
}

bool VersionState::AddReplica(Rank rank, Replica replica) {
  RankShard& shard = *Shard(rank);
  bool at_tier = false;
  bool on_node = replica.node == kNoNode;
  for (const Replica& other : shard.replicas) {
    if (other == replica) return false;
    at_tier = at_tier || other.tier == replica.tier;
    on_node = on_node || other.node == replica.node;
  }
  if (!on_node) by_node[replica.node].push_back(rank);
  if (!at_tier) ++(IsParity(rank) ? parity_held : held)[replica.tier];
  if (shard.replicas.empty() && !IsParity(rank)) ++held_any;
  shard.replicas.push_back(replica);
  if (replica.node != kNoNode) shard.last_node = replica.node;
  fully_available.reset();
  reshard_tier.reset();
  return true;
}

bool VersionState::RemoveReplica(Rank rank, Replica replica) {
  RankShard* shard = Shard(rank);
  if (shard == nullptr) return false;
  ReplicaList& replicas = shard->replicas;
  const auto found = std::find(replicas.begin(), replicas.end(), replica);
  if (found == replicas.end()) return false;
  replicas.erase(found);
  fully_available.reset();
  reshard_tier.reset();
  const bool on_node = std::any_of(replicas.begin(), replicas.end(), [&](const Replica& other) {
    return other.node == replica.node;
  });
  if (replica.node != kNoNode && !on_node) {
    const auto shards = by_node.find(replica.node);
    std::erase(shards->second, rank);
    if (shards->second.empty()) by_node.erase(shards);
  }
  bool at_tier = std::any_of(replicas.begin(), replicas.end(),
                             [&](const Replica& other) { return other.tier == replica.tier; });
  if (!at_tier) --(IsParity(rank) ? parity_held : held)[replica.tier];
  if (replicas.empty() && !IsParity(rank)) --held_any;
  return true;
}

void VersionState::RemoveReplicasOf(NodeIndex node) {
  for (DamagedReplica& bad : damaged) bad.readable = bad.readable && bad.replica.node != node;
  const auto found = by_node.find(node);
  if (found == by_node.end()) return;
  const std::vector<Rank> shards = found->second;
  for (const Rank rank : shards) {
    const ReplicaList replicas = Shard(rank)->replicas;
    for (const Replica& replica : replicas) {
      if (replica.node == node) RemoveReplica(rank, replica);
    }
  }
}

void RestorePlan::Wait(const RestoreWaiter& waiter) {
  if (!is_awaited()) waiting_since = waiter.since;
  if (waiter.reshard) {
    reshards.push_back(waiter);
  } else {
    waiters.emplace(waiter.rank, waiter);
    due.insert(waiter.rank);
  }
}

void RestorePlan::RollBack(const RestoreWaiter& waiter) {
  (waiter.wanted ? rollbacks : rollbacks_to_newest).push_back(waiter);
}

DamagedReplica* VersionState::Damaged(Rank rank, Replica replica) {
  auto found = std::find_if(damaged.begin(), damaged.end(), [&](const DamagedReplica& bad) {
    return bad.rank == rank && bad.replica == replica;
  });
  return found == damaged.end() ? nullptr : &*found;
}

bool VersionState::IsReadable(Rank rank, Replica replica) const {
  return std::any_of(damaged.begin(), damaged.end(), [&](const DamagedReplica& bad) {
    return bad.readable && bad.rank == rank && bad.replica == replica;
  });
}

}  // namespace holdfast::coord
