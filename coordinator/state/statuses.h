#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "coordinator/contract/directives.h"
#include "coordinator/contract/reports.h"
#include "coordinator/state/records.h"

// The answers to operators about the state, as plain values.

namespace holdfast::coord {

/// A node's place in the parity groups of a job's current incarnation.
struct GroupMembershipStatus {
  std::string job;
  uint32_t group = 0;
  uint32_t number = 0;    // over all groups
  uint32_t position = 0;  // in its group
  uint32_t members = 0;   // of the group
  uint32_t parity = 0;    // members that may be lost
};

/// The quarantined replicas that a node keeps of another life of the store.
struct OtherLifeStatus {
  LifeId life;
  std::string job;
  uint32_t shards = 0;
  VersionId newest;
};

/// An agent whose attach was refused.
struct RefusedNode {
  std::string node;
  std::string why;
  int64_t wall_nanos = 0;
  Clock::TimePoint at;
};

struct NodeStatus {
  std::string name;
  bool alive = false;
  std::string data_address;
  uint64_t held_memory_bytes = 0;
  uint64_t held_disk_bytes = 0;
  uint64_t held_parity_bytes = 0;  // in memory; parity on disk is part of held_disk_bytes
  NodeHealth health;
  int64_t seen_wall_nanos = 0;
  std::string peer_address;
  Labels labels;
  std::vector<GroupMembershipStatus> memberships;
  std::vector<OtherLifeStatus> other_lives;
  std::optional<DrainRecord> drain;
};

/// A version on disk that lacks some of the shards that its parity groups should keep there.
struct UnderProtectedStatus {
  VersionId version;
  uint32_t shards = 0;  // that should be there
  uint32_t present = 0;
  uint32_t ordered = 0;  // repairs in progress
  std::string why;
};

struct JobStatus {
  std::string name;
  uint32_t uid = 0;
  Incarnation incarnation;
  uint32_t world = 0;
  uint32_t ranks_joined = 0;
  PerTier<std::optional<VersionId>> committed;  // newest
  PerTier<std::optional<VersionId>> copying;    // the version that is being copied to the tier
  std::optional<VersionId> restorable;          // newest
  Tier restorable_tier = Tier::kMemory;         // the slowest tier that a rank reads from
  std::string not_restorable_why;  // empty when the newest committed version is restorable
  int64_t committed_wall_nanos = 0;
  PerTier<int64_t> wall_nanos{};  // of the newest version committed at the tier; 0: none
  uint64_t committed_total = 0;
  uint64_t aborted_total = 0;
  uint64_t pending_versions = 0;
  Step newest_seen;
  Step peer_target_step;
  std::optional<VersionId> peer_target;  // the version whose parity is being built
  uint32_t peer_target_held = 0;         // members that have their parity of peer_target
  uint32_t peer_members = 0;             // 0: the current incarnation has no parity groups
  std::string not_protected_why;         // with peer_members 0
  std::vector<UnderProtectedStatus> under_protected;  // newest first
  JobPhase phase = JobPhase::kRunning;
  /// Which tiers the newest committed version lacks although no newer version follows; empty: none.
  std::string not_durable_why;
  int64_t ended_wall_nanos = 0;
  uint64_t keep_last = 0;  // of this job; 0: the coordinator's values apply
  uint64_t keep_every = 0;
};

/// How far the parity of a rank's group is behind the rank.
struct ParityLag {
  uint32_t versions = 0;  // sealed by the rank since the newest with parity of its group
  int64_t ms = 0;         // since the oldest of them was committed
  bool operator==(const ParityLag&) const = default;
};

struct VersionStatus {
  VersionId version;
  Phase phase = Phase::kPending;
  uint32_t committed_tiers = 0;
  uint32_t available_tiers = 0;
  uint32_t world = 0;
  uint64_t bytes = 0;
  int64_t wall_nanos = 0;
  bool pinned = false;
  bool restorable = false;
  std::string why_not;
  bool abandoned = false;
  /// Which losses the version survives now, see survival.h; empty: it is not restorable.
  std::string survives;
  std::vector<std::string> disputed;  // one sentence for each dispute
  std::optional<Verification> verification;
  uint64_t commit_digest = 0;  // 0: not committed
};

struct ReplicaLocation {
  Rank rank;
  std::string node;
  std::string address;       // for operators
  std::string peer_address;  // for agents
  Tier tier = Tier::kMemory;
  uint64_t image_bytes = 0;
  uint64_t digest = 0;
};

struct RestorePlanStatus {
  VersionId version;
  uint32_t world = 0;
  std::vector<ReplicaLocation> sources;  // one per rank; from PlanAllReplicas: all replicas
  std::vector<ReplicaLocation> parity;   // only with a given tier or from PlanAllReplicas
  std::vector<GroupPlan> groups;         // only from PlanAllReplicas
};

/// The impact on a job of losing some nodes and all their replicas.
struct NodeLossImpact {
  std::string job;
  std::optional<VersionId> newest;    // committed and not abandoned
  bool keeps = false;                 // `newest` would still be restorable
  std::string why_not;                // empty if `keeps`
  std::optional<VersionId> fallback;  // the version that a restart would restore
  bool stops = false;                 // ranks of the job run on these nodes
};

enum class DrainState : uint8_t {
  kSafe = 1,           // the newest version keeps all its redundancy without the nodes
  kLessProtected = 2,  // it can be restored without them, and survives the loss of fewer nodes
  kNotSafe = 3,        // it needs the nodes
};

/// What a job would lose without the drained nodes.
struct DrainedJob {
  std::string job;
  std::optional<VersionId> newest;  // committed and not abandoned
  std::optional<VersionId> safe;    // newest that can be restored without the nodes
  DrainState state = DrainState::kSafe;
  bool runs_here = false;  // ranks of the job run on the nodes
  uint32_t writing = 0;    // shards that are still to be written
  std::string why;         // empty with kSafe
  std::string to_do;       // likewise
};

/// Whether a node can be stopped. The jobs are judged without all drained nodes.
struct DrainStatus {
  std::optional<DrainRecord> drain;  // empty: the node is not drained
  bool alive = false;
  std::vector<std::string> others;  // the other drained nodes
  std::vector<DrainedJob> jobs;
};

}  // namespace holdfast::coord
