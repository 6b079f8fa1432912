#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/api/types.h"
#include "coordinator/state/records.h"
#include "storage/base/clock.h"

// What operators see of the state, as plain values.

namespace holdfast::coord {

/// A node's place in the parity groups of a job's current incarnation.
struct SeatView {
  std::string job;
  uint32_t group = 0;
  uint32_t number = 0;    // over all groups
  uint32_t position = 0;  // in its group
  uint32_t members = 0;   // of the group
  uint32_t parity = 0;    // of them may be lost
};

/// What a node keeps of another life of the store.
struct OtherLifeView {
  LifeId life;
  std::string job;
  uint32_t shards = 0;
  VersionId newest;
};

/// An agent that is turned away.
struct RefusedView {
  std::string node;
  std::string why;
  int64_t wall_nanos = 0;
  Clock::TimePoint at;
};

struct NodeView {
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
  std::vector<SeatView> seats;
  std::vector<OtherLifeView> other_lives;
};

/// See Lacking; while it is counted, what is missing may still be on its way.
struct UnderProtectedView {
  VersionId version;
  uint32_t shards = 0;
  uint32_t present = 0;
  uint32_t ordered = 0;  // are being brought back
  std::string why;
};

struct JobView {
  std::string name;
  uint32_t uid = 0;
  Incarnation incarnation;
  uint32_t world = 0;
  uint32_t ranks_joined = 0;
  VersionId memory_committed;
  VersionId disk_committed;
  VersionId restorable;
  Tier restorable_tier = Tier::kMemory;  // the farthest tier that a rank needs
  std::string not_restorable_why;        // empty when the newest committed version is restorable
  int64_t committed_wall_nanos = 0;
  int64_t memory_wall_nanos = 0;  // of the newest committed there; 0: none
  int64_t peer_wall_nanos = 0;
  int64_t disk_wall_nanos = 0;
  uint64_t committed_total = 0;
  uint64_t aborted_total = 0;
  uint64_t pending_versions = 0;
  Step newest_seen;
  VersionId peer_committed;
  Step peer_target_step;
  VersionId peer_target;          // the version whose parity is being made; incarnation 0: none yet
  uint32_t peer_target_held = 0;  // members that have their parity of it
  uint32_t peer_members = 0;      // 0: the current incarnation has no parity groups
  std::string not_protected_why;  // with peer_members 0
  std::vector<UnderProtectedView> under_protected;  // newest first
  JobPhase phase = JobPhase::kRunning;
  /// What the newest committed version lacks although nothing newer comes; empty: nothing.
  std::string not_durable_why;
  int64_t ended_wall_nanos = 0;
  uint64_t keep_last = 0;  // of this job; 0: the coordinator's rule
  uint64_t keep_every = 0;
};

struct VersionView {
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
  /// What may be lost now so that it can still be restored; empty: nothing.
  std::string survives;
  std::vector<std::string> disputed;  // sentences
};

struct SourceView {
  Rank rank;
  std::string node;
  std::string address;
  Tier tier = Tier::kMemory;
  uint64_t image_bytes = 0;
  uint64_t digest = 0;
};

struct RestoreView {
  VersionId version;
  uint32_t world = 0;
  std::vector<SourceView> sources;  // by rank; of PlanView: all there are
  std::vector<SourceView> parity;   // with a named tier, and of PlanView: all parity there
  std::vector<PeerGroup> groups;    // of PlanView
};

/// What would become of a job without some nodes and all that they hold.
struct WithoutView {
  std::string job;
  VersionId newest;     // committed and not abandoned; incarnation 0: none
  bool keeps = false;   // `newest` could still be restored
  std::string why_not;  // empty when it keeps
  VersionId fallback;   // what a restart would get instead; incarnation 0: nothing
  bool stops = false;   // ranks of the job run there
};

}  // namespace holdfast::coord
