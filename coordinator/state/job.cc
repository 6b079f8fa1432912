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
  for (const Replica& other : shard.replicas) {
    if (other == replica) return false;
    at_tier = at_tier || other.tier == replica.tier;
  }
  if (!at_tier) ++(IsParity(rank) ? parity_held : held)[replica.tier];
  if (shard.replicas.empty() && !IsParity(rank)) ++held_any;
  shard.replicas.push_back(replica);
  if (replica.node != kNoNode) shard.last_node = replica.node;
  fully_available.reset();
  return true;
}

bool VersionState::RemoveReplica(Rank rank, Replica replica) {
  RankShard* shard = Shard(rank);
  if (shard == nullptr) return false;
  std::vector<Replica>& replicas = shard->replicas;
  auto found = std::find(replicas.begin(), replicas.end(), replica);
  if (found == replicas.end()) return false;
  replicas.erase(found);
  fully_available.reset();
  bool at_tier = std::any_of(replicas.begin(), replicas.end(),
                             [&](const Replica& other) { return other.tier == replica.tier; });
  if (!at_tier) --(IsParity(rank) ? parity_held : held)[replica.tier];
  if (replicas.empty() && !IsParity(rank)) --held_any;
  return true;
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
