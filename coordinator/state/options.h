#pragma once

#include <chrono>
#include <string>

#include "base/ids.h"
#include "base/invariant.h"
#include "base/life.h"
#include "base/tiers.h"
#include "coordinator/state/groups.h"

namespace holdfast::coord {

struct PeerOptions {
  bool enabled = true;
  GroupOptions groups;
  std::string domain_label = "rack";  // nodes with the same value are one failure domain
};

/// Which versions a tier keeps.
struct RetentionRule {
  uint64_t keep_last = 3;   // newest versions at the tier, at least 1
  uint64_t keep_every = 0;  // also each version whose step is divisible by this; 0: none
};

/// When versions on disk are copied to a tier (TierPace::kCopy).
struct CopyOptions {
  uint64_t every_steps = 0;             // steps from one copy to the next; 0: any
  std::chrono::nanoseconds interval{};  // time from one copy to the next
  RetentionRule retention;
};

struct StateOptions {
  /// Records violations of the rules; outlives the state. Asked before effects are stored.
  InvariantMonitor* invariants = &InvariantMonitor::Process();
  Epoch epoch;
  LifeId life;  // of the store; 0 (tests): every replica counts as of this life
  std::chrono::nanoseconds node_lease = std::chrono::seconds(3);
  /// How long after the end of its stream a node may attach again before it counts as lost.
  std::chrono::nanoseconds detach_grace = std::chrono::milliseconds(500);
  /// After this time without an acknowledgement of a probe the stream has ended: a machine that is
  /// off or unreachable. Otherwise the agent may only be stopped.
  std::chrono::nanoseconds probe_timeout = std::chrono::seconds(2);
  uint32_t keep_last = 3;   // newest versions on disk, at least 1
  uint64_t keep_every = 0;  // also keep every K-th step; 0: none
  PeerOptions peers;
  PerTier<CopyOptions> copies;
  /// How long to wait before the repair of a missing shard, which its node may still be writing.
  std::chrono::nanoseconds repair_grace = std::chrono::seconds(2);
  /// How long a node may be away before another node takes its place in the parity groups and gets
  /// its shards of the versions on disk.
  std::chrono::nanoseconds rehome_after = std::chrono::minutes(10);
  /// How long after its first report the newest version is flushed to every tier, unless a newer
  /// one follows.
  std::chrono::nanoseconds flush_after = std::chrono::seconds(1);
  /// How long a job may have no trainers before it counts as ended.
  std::chrono::nanoseconds end_grace = std::chrono::seconds(2);
  /// How long after its end a finished job's memory is released. For a job that ended without
  /// goodbyes the time is `release_dead_after`.
  std::chrono::nanoseconds release_after = std::chrono::seconds(5);
  std::chrono::nanoseconds release_dead_after = std::chrono::hours(1);
  /// How long after its end a job is forgotten; 0: never.
  std::chrono::nanoseconds forget_after{};
  /// Adopt versions of other lives as soon as they are complete, without `holdfast adopt`.
  bool rebuild = false;
  /// How long a join waits for the end of ranks of the previous start, which has the same run ID.
  std::chrono::nanoseconds rejoin_wait = std::chrono::seconds(4);
};

}  // namespace holdfast::coord
