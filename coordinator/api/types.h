#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "storage/base/ids.h"
#include "storage/base/life.h"
#include "storage/format/replica_sample.h"

// Messages between agents and the coordinator, as plain values with strong IDs. coordinator.proto
// defines the wire form. convert.h converts between the two and checks everything that arrives.

namespace holdfast::coord {

/// Limits of the erasure code: nodes of a parity group, and nodes whose loss a group survives.
inline constexpr uint32_t kPeerGroupNodesMax = 32;
inline constexpr uint32_t kPeerGroupParityMax = 4;
/// Limits of a node image: ranks of one member, and the size and alignment of a rank's slot.
inline constexpr uint32_t kPeerRanksMax = 1024;
inline constexpr uint64_t kSlotBytesMax = uint64_t{1} << 42;
inline constexpr uint64_t kSlotBytesAlign = 4096;

/// Largest incarnation and largest step. Each has a successor, and both fit into a signed number.
inline constexpr uint64_t kVersionNumberMax = (uint64_t{1} << 63) - 2;
/// Longest text in a replica report: why a replica failed, or which chunk is damaged.
inline constexpr size_t kReportTextBytesMax = 4096;

/// A node's labels, e.g. rack = "r7".
using Labels = std::map<std::string, std::string>;

/// A rank in a node image and the size of its slot there, constant for the incarnation.
struct PeerRank {
  Rank rank;
  uint64_t slot_bytes = 0;
  bool operator==(const PeerRank&) const = default;
};

struct PeerMember {
  std::string node;
  std::string address;  // of the node's peer listener; empty: the node is not alive
  uint32_t number = 0;  // in the plan, over all groups; the parity shard is ParityRank(number)
  std::vector<PeerRank> ranks;  // ascending
  /// Only in a PrepareShard: the member has all of its ranks' shards (has_data) or its parity shard
  /// (has_parity) of that version, in memory or on disk.
  bool has_data = false;
  bool has_parity = false;
  /// The member's node in the original plan, if another node replaced it; empty: same as `node`.
  std::string planned = {};
  bool operator==(const PeerMember&) const = default;
};

/// Nodes that keep parity for each other. A group without members means no protection.
struct PeerGroup {
  std::vector<PeerMember> members;  // by position in the stripes
  uint32_t parity = 0;              // number of members whose loss the group survives
  bool operator==(const PeerGroup&) const = default;
};

/// Replica report: a node has the bytes of one shard, complete and checksummed, at a tier. The
/// shard belongs to a rank, or is the parity shard of a node (`IsParity(rank)`).
struct StoredReplica {
  std::string job;
  VersionId version;
  Rank rank;
  uint32_t world = 0;
  Tier tier = Tier::kMemory;
  uint64_t digest = 0;
  uint64_t image_bytes = 0;
  std::string damage = {};  // not empty: some chunks are bad; names the one that was found
  LifeId life = {};         // recorded in the seal
  std::vector<ReplicaSample> samples = {};  // of a save: bytes that other ranks must have equal
  bool operator==(const StoredReplica&) const = default;
};

/// Replica report: the version will never have this rank's shard at this tier.
struct FailedReplica {
  std::string job;
  VersionId version;
  Rank rank;
  Tier tier = Tier::kMemory;
  std::string why;
};

/// Replica report: the node no longer has this shard at this tier.
struct RemovedReplica {
  std::string job;
  VersionId version;
  Rank rank;
  Tier tier = Tier::kMemory;
  std::string damage = {};  // not empty: the replica was damaged, and how
};

/// Outcome of a PrepareShard. DataLoss: the source is damaged and no longer counts.
struct Prepared {
  uint64_t request = 0;
  Status outcome;
};

/// A trainer of a node: connected, or disconnected after an orderly goodbye.
struct LocalRank {
  std::string job;
  Incarnation incarnation;
  Rank rank;
  bool goodbye = false;
  bool operator==(const LocalRank&) const = default;
};

/// A trainer waits for a version at a tier.
struct TierWanted {
  std::string job;
  VersionId version;
  Tier tier = Tier::kDisk;
};

/// Whether a job has trainers. Running until the contrary is known.
enum class JobPhase : uint8_t {
  kRunning = 0,
  kEnded = 1,     // no trainer is left
  kFinished = 2,  // no trainer is left, and each ended with a goodbye, or the run ended
};

/// Health of a node, shown to operators.
struct NodeHealth {
  std::vector<std::string> warnings;
  uint32_t disk_free_percent = 0;
};

/// Directive: the coordinator's state of a job. Each message has the full state. A version whose
/// step and incarnation are 0 means "none".
struct JobState {
  std::string job;
  Incarnation incarnation;
  VersionId memory_committed;
  VersionId disk_committed;
  std::vector<VersionId> aborted;
  Step disk_target_step;
  VersionId restore;
  VersionId peer_committed;
  Step peer_target_step;
  PeerGroup group;  // the receiving node's
  JobPhase phase = JobPhase::kRunning;
  /// The job has ended and its newest version is at every tier: free its memory and threads.
  bool release = false;
  /// Remove everything of incarnations up to `incarnation`.
  bool forget = false;
  bool operator==(const JobState&) const = default;
};

/// Directive: bring this shard (of a rank, or a parity shard) to tier `into` (memory or disk) of
/// the receiving node, verify it, and answer with Prepared. At tier peer there is no source: the
/// node decodes the shard from what the members of `group` have.
struct PrepareShard {
  uint64_t request = 0;
  std::string job;
  VersionId version;
  Rank rank;
  uint32_t world = 0;
  Tier tier = Tier::kMemory;
  Tier into = Tier::kMemory;
  std::string source_node;
  std::string source_address;
  uint64_t digest = 0;
  PeerGroup group;  // at tier peer: the group in the version's incarnation
  bool operator==(const PrepareShard&) const = default;
};

/// Directive: delete everything that the node has of a version at a tier.
struct RemoveVersion {
  std::string job;
  VersionId version;
  Tier tier = Tier::kDisk;
  bool operator==(const RemoveVersion&) const = default;
};

}  // namespace holdfast::coord
