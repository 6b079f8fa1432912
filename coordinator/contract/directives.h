#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/tiers.h"
#include "storage/format/commit.h"
#include "storage/parity/group_plan.h"

// Directives of the coordinator to an agent.

namespace holdfast {

/// Whether a job has trainers on any node. A job counts as running until it is known to have ended.
enum class JobPhase : uint8_t {
  kRunning = 0,
  kEnded = 1,     // no trainer is left
  kFinished = 2,  // no trainer is left, and each ended with a goodbye, or the run ended
};

/// The coordinator's complete state of a job. Replaces the previous one.
struct JobState {
  std::string job;
  Incarnation incarnation;
  PerTier<std::optional<VersionId>> committed = {};  // newest
  std::vector<VersionId> aborted = {};               // never to be committed
  PerTier<Step> target_step = {};                    // of the tiers with TierPace::kTarget
  /// The receiving node's parity group in the current incarnation. Empty: the memory is not
  /// protected.
  std::optional<GroupPlan> group = {};
  std::optional<VersionId> restore = {};  // the version that the current incarnation restores
  JobPhase phase = JobPhase::kRunning;
  /// The job is over and its newest version is at every tier: the agent frees its memory and
  /// threads.
  bool release = false;
  /// The agent removes all shards of incarnations up to `incarnation`, also from disk. Other fields
  /// are ignored.
  bool forget = false;
  std::optional<uint32_t> owner = {};  // user; absent: not known
  /// A node of the job leaves: every rank writes this version to disk, for any target.
  std::optional<VersionId> flush = {};
  /// Committed versions, oldest first: the newest at each tier, and at most kCommitsSentMax others.
  std::vector<VersionCommit> commits = {};
  bool operator==(const JobState&) const = default;
};

/// Bring a shard of a rank, or a parity shard, to tier `into` of the receiving node and verify it.
/// The agent answers with Prepared.
struct PrepareShard {
  std::optional<uint64_t> request;  // absent: no Prepared is expected
  ShardIdentity identity;
  Tier tier = Tier::kMemory;  // of the source replica; peer: decode the shard from `group`
  Tier into = Tier::kMemory;  // memory, or a tier that is stored
  std::string source_node = {};
  std::string source_peer_address = {};  // where the source serves its peers
  uint64_t digest = 0;                   // 0: any
  /// With `tier` peer: the parity group, of the version's incarnation, that decodes the shard.
  std::optional<GroupPlan> group = {};
  bool operator==(const PrepareShard&) const = default;
};

/// Delete everything that the node has of a version at a tier.
struct RemoveVersion {
  std::string job;
  VersionId version;
  Tier tier = Tier::kDisk;
  bool operator==(const RemoveVersion&) const = default;
};

/// Run these workers of a job, and first stop the job's workers of any other run ID. With `ranks` 0
/// the node stops all workers of the job.
struct SetWorkers {
  std::string job;
  std::string run_id;
  Rank first_rank;
  uint32_t ranks = 0;
  uint32_t world = 0;
  uint32_t node_rank = 0;
  uint32_t nodes = 0;
  std::string master_address;
  uint32_t master_port = 0;
  uint32_t restarts = 0;  // before this launch
  uint32_t restarts_max = 0;
  std::vector<std::string> command;
  std::vector<std::string> environment;  // NAME=value
  std::string directory;                 // absolute
  int64_t grace_ms = 10'000;             // between SIGTERM and SIGKILL
  std::optional<uint32_t> uid = {};      // user of the workers; absent: not known
  bool operator==(const SetWorkers&) const = default;
};

}  // namespace holdfast
