#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/state/cluster.h"

// Versions of other lives of the store, and whether each is provably complete.
//
// A version is complete if attached nodes have an undamaged replica of every rank's shard, or if a
// parity group can decode the shards that are missing (storage/erasure/survivability.h). All
// replicas of a shard must be equal. The parity groups are those that the parity shards describe;
// the digests that a parity shard lists must be those of the replicas that nodes have.
//
// Agents also know which versions were committed, and the commit digest of each. A version that is
// complete was committed if the digests of its shards combine to that digest. A version of an older
// release, or one that was never committed, has no commit digest on any node.

namespace holdfast::coord {

/// A version of another life with the replicas that attached nodes have of it.
struct Adoptable {
  using Held = std::vector<std::pair<NodeIndex, StoredReplica>>;

  std::string job;
  LifeId life;
  VersionId version;
  uint32_t world = 0;
  std::map<uint32_t, Held> replicas;  // by rank
  std::map<uint32_t, Held> parity;    // by the member's number
  /// Its parity groups; empty: none that all parity shards agree on.
  PeerPlan plan;
  std::map<uint32_t, ListedShard> decoded;  // by rank: no node has it, and its group can decode it
  /// Empty if the version is complete. Otherwise names what is missing, or what contradicts.
  std::string incomplete;
  CommitEvidence commit = CommitEvidence::kNone;

  /// Returns the number of ranks that have a replica at the tier.
  uint32_t held_at(Tier tier) const;
};

/// Returns the quarantined versions that `event` names, complete or not, ordered by job, and newest
/// first within a job.
std::vector<Adoptable> FindAdoptable(const ReadContext& context, const AdoptRequested& event);

}  // namespace holdfast::coord
