#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/base/ids.h"
#include "storage/base/status.h"
#include "storage/format/replica_sample.h"
#include "storage/format/seal.h"
#include "storage/parity/group_plan.h"
#include "storage/volume/seen_life.h"

// The pipeline's interfaces to the coordinator and to other agents. agent/server implements them
// over gRPC; tests use a small coordinator in the same process.

namespace holdfast::agent {

// ---- reports: agent → coordinator ----

/// This node has a replica of the shard at `tier`, complete and checksummed. With `damage` the
/// replica has bad chunks: its good chunks still serve to decode other shards, and a PrepareShard
/// repairs the replica.
struct StoredReplica {
  ShardIdentity identity;
  Tier tier = Tier::kMemory;
  uint64_t digest = 0;
  uint64_t image_bytes = 0;
  std::string damage = {};                  // not empty: describes the bad chunk that was found
  LifeId life = {};                         // from the seal
  std::vector<ReplicaSample> samples = {};  // set only after a save
};

/// This rank's shard of a version will never be at `tier`.
struct FailedReplica {
  ShardKey key;
  Tier tier = Tier::kMemory;
  std::string why;
};

/// The node no longer has the replica it reported earlier.
struct RemovedReplica {
  ShardKey key;
  Tier tier = Tier::kMemory;
  std::string damage = {};  // not empty: why the replica was dropped as damaged
};

/// The outcome of a PrepareShard.
struct Prepared {
  uint64_t request = 0;
  Status outcome;
};

/// A trainer of this node: connected, or disconnected after a Goodbye.
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

/// Whether a job has trainers anywhere.
enum class JobPhase : uint8_t { kRunning, kEnded, kFinished };

// ---- directives: coordinator → agent ----

/// The coordinator's complete state of a job. Replaces the previous one.
struct JobState {
  std::string job;
  Incarnation incarnation;
  std::optional<VersionId> memory_committed;  // newest
  std::optional<VersionId> peer_committed;    // newest
  std::optional<VersionId> disk_committed;    // newest
  std::vector<VersionId> aborted;             // never to be committed
  Step disk_target_step;
  Step peer_target_step;
  /// The state was adapted to parity shards (see ForParity).
  bool for_parity = false;
  /// This node's parity group in the current incarnation. Empty: the memory is not protected.
  std::optional<GroupPlan> group;
  std::optional<VersionId> restore;  // the version that the current incarnation restores
  JobPhase phase = JobPhase::kRunning;
  /// The job is over and safe on disk: the agent frees its memory and threads.
  bool release = false;
  /// The agent removes all shards of incarnations up to `incarnation`, also from disk. Other fields
  /// are ignored.
  bool forget = false;
};

/// Directs the agent to bring a shard into its rank's memory, or back onto this node's disks, and
/// to verify it. The agent answers with Prepared.
struct PrepareShard {
  uint64_t request = 0;  // 0: no Prepared is expected
  ShardIdentity identity;
  Tier tier = Tier::kMemory;  // of the source's replica; peer: decode it
  std::string source_node;
  std::string source_address;
  Tier into = Tier::kMemory;
  uint64_t digest = 0;      // 0: any
  Incarnation incarnation;  // the job's current one
  /// The parity group that decodes the shard; replaces the source when `tier` is peer.
  std::optional<GroupPlan> group;
};

/// Directs the agent to delete its replicas of a version at a tier.
struct RemoveVersion {
  std::string job;
  VersionId version;
  Tier tier = Tier::kDisk;
};

// ---- requests: agent → coordinator ----

struct JoinRequest {
  std::string job;
  std::string run_id;
  Rank rank;
  uint32_t world = 0;
  uint32_t uid = 0;
  uint64_t slot_bytes = 0;  // upper bound for a shard of this rank
  /// The incarnation that this process joined before; 0: none.
  Incarnation joined_before = {};
};

struct RestoreRequest {
  std::string job;
  Incarnation incarnation;
  Rank rank;
  std::optional<VersionId> wanted;  // empty: the newest restorable
  int64_t timeout_ms = 0;
  bool reshard = false;  // the rank reads parts of all shards; nothing is prepared
};

struct RestoreDecision {
  VersionId version;
  Tier tier = Tier::kMemory;  // source of this rank's shard; for a reshard, the slowest source
  uint32_t world = 0;         // ranks that saved the version
};

/// An intact replica of a shard.
struct ShardPlace {
  std::string node;
  std::string address;  // of its data service
  Tier tier = Tier::kMemory;
};

/// Where the replicas of a version's shards are now.
struct VersionPlaces {
  struct Shard {
    uint64_t digest = 0;  // 0: any
    std::vector<ShardPlace> places;
  };
  std::vector<Shard> shards;      // by rank of the world that saved it
  std::vector<GroupPlan> groups;  // can decode shards without a replica
};

/// Sends the pipeline's reports and requests. Thread-safe; no call blocks. Reports are kept until
/// the coordinator has acknowledged them and are repeated after a reconnect. `done` is called
/// exactly once, from any thread, also when the link stops (Cancelled).
class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;

  virtual void Report(StoredReplica report) = 0;
  virtual void Report(FailedReplica failed) = 0;
  virtual void Report(RemovedReplica removed) = 0;
  virtual void Report(Prepared prepared) = 0;
  /// Replaces the warnings of this node, which an operator should see.
  virtual void SetWarnings(std::vector<std::string> warnings) = 0;

  /// Replaces the trainers of this node.
  virtual void SetRanks(std::vector<LocalRank> /*ranks*/) {}
  virtual void Report(TierWanted /*wanted*/) {}

  /// `done` gets Unavailable while the coordinator cannot be reached.
  virtual void Join(const JoinRequest& request, std::function<void(Result<Incarnation>)> done) = 0;
  virtual void DecideRestore(const RestoreRequest& request,
                             std::function<void(Result<RestoreDecision>)> done) = 0;
  virtual void FindPlaces(const std::string& job, VersionId version,
                          std::function<void(Result<VersionPlaces>)> done) = 0;
};

/// Receives the directives that arrive on the link. Calls return at once.
class DirectiveHandler {
 public:
  virtual ~DirectiveHandler() = default;
  virtual void OnJobState(JobState state) = 0;
  virtual void OnPrepareShard(PrepareShard prepare) = 0;
  virtual void OnRemoveVersion(RemoveVersion remove) = 0;
  /// Called before any other directive of a stream, with the life of the coordinator's store. When
  /// the life has changed, the numbers of incarnations and versions have another meaning, and
  /// trainers must join again.
  virtual void OnLife(const SeenLife& /*seen*/) {}
};

/// A shard that is being read from another agent.
class ShardStream {
 public:
  virtual ~ShardStream() = default;
  virtual const ShardSeal& seal() const = 0;
  /// Reads the image into `into` (at least seal().image_bytes) and checks each chunk against the
  /// seal as it arrives. `progress` gets the number of bytes verified. DataLoss names the chunk
  /// that differs.
  virtual Status ReadInto(std::span<std::byte> into,
                          const std::function<void(uint64_t)>& progress) = 0;
};

/// Reads shards from other agents. Thread-safe.
class ShardFetcher {
 public:
  virtual ~ShardFetcher() = default;
  virtual Result<std::unique_ptr<ShardStream>> Open(const std::string& address, const ShardKey& key,
                                                    Tier tier) = 0;
  /// Fills `into` with the image bytes from `offset` on: complete chunks, each checked against the
  /// seal, which is returned. With an empty `into` only the seal is read.
  virtual Result<ShardSeal> ReadRange(const std::string& address, const ShardKey& key, Tier tier,
                                      uint64_t offset, std::span<std::byte> into) = 0;
};

}  // namespace holdfast::agent
