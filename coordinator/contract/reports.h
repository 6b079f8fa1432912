#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/life.h"
#include "base/status.h"
#include "storage/format/replica_sample.h"
#include "storage/parity/shard_group.h"

// Reports of an agent to the coordinator. Replica reports list the shards that a node has. The
// coordinator commits a version when each of its shards has been reported.

namespace holdfast {

/// The node has a replica of the shard at `tier`, complete and checksummed. The shard belongs to a
/// rank, or is the parity shard of a node (`IsParity(rank)`). With `damage` the replica has bad
/// chunks: its good chunks can still be used to decode other shards, and a PrepareShard repairs the
/// replica.
struct StoredReplica {
  ShardIdentity identity;
  Tier tier = Tier::kMemory;
  uint64_t digest = 0;
  uint64_t image_bytes = 0;
  std::string damage = {};  // not empty: describes the bad chunk that was found
  LifeId life = {};         // from the seal
  /// Set only after a save: checksums of bytes that must be equal on other ranks.
  std::vector<ReplicaSample> samples = {};
  /// Of a parity shard of another life of the coordinator's store: what the shard lists.
  std::shared_ptr<const ShardGroup> group = {};
  bool operator==(const StoredReplica&) const = default;
};

/// The version will never have this rank's shard at `tier`.
struct FailedReplica {
  ShardKey key;
  Tier tier = Tier::kMemory;
  std::string why;
};

/// The node no longer has the replica that it reported earlier.
struct RemovedReplica {
  ShardKey key;
  Tier tier = Tier::kMemory;
  std::string damage = {};  // not empty: why the replica was dropped as damaged
};

/// The outcome of a PrepareShard. DataLoss: the source replica is damaged and no longer counts.
struct Prepared {
  uint64_t request = 0;
  Status outcome;
};

/// A trainer of the node: connected, or disconnected after a goodbye.
struct LocalRank {
  std::string job;
  Incarnation incarnation;
  Rank rank;
  bool goodbye = false;
  bool operator==(const LocalRank&) const = default;
};

/// A trainer waits until a version is committed at a tier.
struct TierWanted {
  std::string job;
  VersionId version;
  Tier tier = Tier::kDisk;
};

/// A node's labels, e.g. rack = "r7".
using Labels = std::map<std::string, std::string>;

/// The memory that a node has for segments, and how much of it the existing segments reserve.
struct ArenaUse {
  uint64_t bytes = 0;
  uint64_t reserved_bytes = 0;
  bool operator==(const ArenaUse&) const = default;
};

/// Health of a node, shown to operators.
struct NodeHealth {
  std::vector<std::string> warnings;
  uint32_t disk_free_percent = 0;
  std::optional<ArenaUse> arena;  // nullopt: an older agent
  bool departing = false;  // the agent ends soon, and brings its newest version to disk first
};

enum class WorkerPhase : uint8_t {
  kRunning = 1,
  kEnded = 2,
  kStuck = 3,  // still exists after SIGKILL
};

/// State of a worker on its node.
struct WorkerState {
  std::string job;
  std::string run_id;
  Rank rank;
  WorkerPhase phase = WorkerPhase::kRunning;
  uint32_t pid = 0;  // 0: not known yet
  int32_t exit_code = 0;
  int32_t signal = 0;  // not 0: the signal that ended the process
  int64_t ended_ago_ms = 0;
  std::string last_lines = {};  // the end of its output
  bool operator==(const WorkerState&) const = default;
};

}  // namespace holdfast
