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

// How the pipeline speaks to the coordinator and to other agents. agent/server does it over gRPC,
// the tests with a small coordinator in the same process.

namespace holdfast::agent {

// ---- facts: agent → coordinator ----

/// This node has the shard, complete and checksummed, at `tier`; or most of it, which serves to
/// decode others' shards and is mended when it is ordered back.
struct Holding {
  ShardIdentity identity;
  Tier tier = Tier::kMemory;
  uint64_t digest = 0;
  uint64_t image_bytes = 0;
  std::string damage = {};  // not empty: some of its chunks are bad, and which was found
  LifeId life = {};         // of its seal
  std::vector<ReplicaSample> samples = {};  // of a save
};

/// This rank's shard of a version will never be at `tier`.
struct Missing {
  ShardKey key;
  Tier tier = Tier::kMemory;
  std::string why;
};

/// The shard was here and is no more.
struct Gone {
  ShardKey key;
  Tier tier = Tier::kMemory;
  std::string damage = {};  // not empty: it was found damaged, and how
};

/// The end of a PrepareShard.
struct Prepared {
  uint64_t request = 0;
  Status outcome;
};

/// A trainer of this node: connected, or gone with a goodbye.
struct LocalRank {
  std::string job;
  Incarnation incarnation;
  Rank rank;
  bool said_goodbye = false;
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

/// The coordinator's word on a job, whole.
struct JobState {
  std::string job;
  Incarnation incarnation;
  std::optional<VersionId> memory_committed;  // newest
  std::optional<VersionId> peer_committed;    // newest
  std::optional<VersionId> disk_committed;    // newest
  std::vector<VersionId> aborted;             // never to be committed
  Step disk_target_step;
  Step peer_target_step;
  /// This is the word as it concerns parity shards (see ForParity).
  bool for_parity = false;
  /// This node's parity group of the current incarnation; nothing: its memory is not protected.
  std::optional<GroupPlan> group;
  std::optional<VersionId> restore;  // what the current incarnation restores from
  JobPhase phase = JobPhase::kRunning;
  /// The job is over and safe on disk: its memory and threads go.
  bool release = false;
  /// Everything of incarnations up to `incarnation` goes, on disk as well; no other field counts.
  bool forget = false;
};

/// Bring a shard into its memory, or back onto this node's disks, verified, and say so with
/// Prepared.
struct PrepareShard {
  uint64_t request = 0;  // 0: nobody waits for a Prepared
  ShardIdentity identity;
  Tier tier = Tier::kMemory;  // where the source has it
  std::string source_node;
  std::string source_address;
  Tier into = Tier::kMemory;
  uint64_t digest = 0;      // 0: any
  Incarnation incarnation;  // current one of the job
  /// With tier peer: who decodes it, in place of a source.
  std::optional<GroupPlan> group;
};

/// Delete what this node has of a version at a tier.
struct RemoveVersion {
  std::string job;
  VersionId version;
  Tier tier = Tier::kDisk;
};

// ---- questions: agent → coordinator ----

struct JoinQuestion {
  std::string job;
  std::string run_id;
  Rank rank;
  uint32_t world = 0;
  uint32_t uid = 0;
  uint64_t slot_bytes = 0;  // the most that a shard of this rank takes
  /// This process joined that incarnation before; 0: it did not.
  Incarnation joined_before = {};
};

struct RestoreQuestion {
  std::string job;
  Incarnation incarnation;
  Rank rank;
  std::optional<VersionId> wanted;  // nothing: the newest restorable
  int64_t timeout_ms = 0;
  bool view = false;  // the rank reads everybody's shards where they lie; nothing is prepared
};

struct RestoreDecision {
  VersionId version;
  Tier tier = Tier::kMemory;  // where this rank's shard came from; of a view, the farthest
  uint32_t world = 0;         // ranks that saved the version
};

/// A whole copy of a shard.
struct ShardPlace {
  std::string node;
  std::string address;  // of its data service
  Tier tier = Tier::kMemory;
};

/// Where the shards of a version are now.
struct VersionPlaces {
  struct Shard {
    uint64_t digest = 0;  // 0: any
    std::vector<ShardPlace> places;
  };
  std::vector<Shard> shards;      // by rank of the world that saved it
  std::vector<GroupPlan> groups;  // who can decode what has no copy
};

/// The pipeline's side of the conversation. Thread-safe; no call blocks. Facts are kept until the
/// coordinator has acknowledged them and are repeated after a reconnect. `done` is called exactly
/// once, from any thread, also when the link stops (Cancelled).
class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;

  virtual void Report(Holding holding) = 0;
  virtual void Report(Missing missing) = 0;
  virtual void Report(Gone gone) = 0;
  virtual void Report(Prepared prepared) = 0;
  /// Replaces the conditions of this node that an operator should see.
  virtual void SetWarnings(std::vector<std::string> warnings) = 0;

  /// Replaces the trainers of this node.
  virtual void SetRanks(std::vector<LocalRank> /*ranks*/) {}
  virtual void Report(TierWanted /*wanted*/) {}

  /// Unavailable: the coordinator cannot be reached now.
  virtual void Join(const JoinQuestion& question,
                    std::function<void(Result<Incarnation>)> done) = 0;
  virtual void DecideRestore(const RestoreQuestion& question,
                             std::function<void(Result<RestoreDecision>)> done) = 0;
  virtual void FindPlaces(const std::string& job, VersionId version,
                          std::function<void(Result<VersionPlaces>)> done) = 0;
};

/// What the link calls when a directive arrives; the calls return at once.
class DirectiveHandler {
 public:
  virtual ~DirectiveHandler() = default;
  virtual void OnJobState(JobState state) = 0;
  virtual void OnPrepareShard(PrepareShard prepare) = 0;
  virtual void OnRemoveVersion(RemoveVersion remove) = 0;
  /// Before any other directive of a stream: the life of the coordinator's store. In another life
  /// than the one before, nothing of what was agreed on with running trainers holds.
  virtual void OnLife(const SeenLife& /*seen*/) {}
};

/// A shard that is being read from another agent.
class ShardStream {
 public:
  virtual ~ShardStream() = default;
  virtual const ShardSeal& seal() const = 0;
  /// Reads the image into `into` (at least seal().image_bytes), each chunk checked against the seal
  /// as it comes; `progress` gets the bytes verified. DataLoss names the chunk that differs.
  virtual Status ReadInto(std::span<std::byte> into,
                          const std::function<void(uint64_t)>& progress) = 0;
};

/// Reads shards from other agents. Thread-safe.
class ShardFetcher {
 public:
  virtual ~ShardFetcher() = default;
  virtual Result<std::unique_ptr<ShardStream>> Open(const std::string& address, const ShardKey& key,
                                                    Tier tier) = 0;
  /// Fills `into` with the image bytes from `offset` on, whole chunks, each checked against the
  /// seal that it returns; with an empty `into` just the seal.
  virtual Result<ShardSeal> ReadRange(const std::string& address, const ShardKey& key, Tier tier,
                                      uint64_t offset, std::span<std::byte> into) = 0;
};

}  // namespace holdfast::agent
