#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "storage/parity/group_plan.h"

// Requests of an agent to the coordinator, and their answers.

namespace holdfast {

/// A trainer joins its job.
struct JoinRequest {
  std::string job;
  std::string run_id;
  Rank rank;
  uint32_t world = 0;
  uint32_t uid = 0;
  uint64_t slot_bytes = 0;  // upper bound on the size of a shard of this rank
  /// The incarnation that this process joined before.
  std::optional<Incarnation> joined_before;
  bool operator==(const JoinRequest&) const = default;
};

/// A trainer asks which version to restore.
struct RestoreRequest {
  std::string job;
  Incarnation incarnation;
  Rank rank;
  std::optional<VersionId> wanted;  // empty: the newest restorable
  int64_t timeout_ms = 0;
  /// The rank reads what it needs from all ranks' shards, on any nodes. No shard is prepared, and
  /// the version may have been saved in another world size.
  bool reshard = false;
  bool operator==(const RestoreRequest&) const = default;
};

struct RestoreDecision {
  VersionId version;
  Tier tier = Tier::kMemory;  // source of this rank's shard; for a reshard, the slowest source
  uint32_t world = 0;         // ranks that saved the version
};

/// An intact replica of a shard.
struct ShardPlace {
  std::string node;
  std::string peer_address;  // empty: not known
  Tier tier = Tier::kMemory;
};

/// Where the replicas of a version's shards are now.
struct VersionPlaces {
  struct Shard {
    uint64_t digest = 0;  // 0: any
    std::vector<ShardPlace> places;
  };
  std::vector<Shard> shards;      // by rank of the world that saved the version
  std::vector<GroupPlan> groups;  // can decode the shards that have no replica
};

}  // namespace holdfast
