#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/tiers.h"
#include "coordinator/state/events.h"
#include "coordinator/state/records.h"
#include "coordinator/state/replica_list.h"
#include "coordinator/state/tier_target.h"

// A job, its versions and their replicas, and the nodes: plain data. The modules have the rules.

namespace holdfast::coord {

/// The uid of an adopted job without an owner: root may open it, or an operator sets the owner.
inline constexpr uint32_t kNoOwner = ~uint32_t{0};

struct Node {
  std::string name;
  bool attached = false;
  AttachId attach = 0;
  uint64_t agent_start = 0;
  uint64_t agent_id = 0;
  std::string data_address;
  std::string peer_address;  // empty: the node serves no peers
  bool no_parity = false;    // the node takes part in no parity group
  Labels labels;
  NodeHealth health;
  std::optional<DrainRecord> drain;  // the node is drained
  /// By job, the highest incarnation in the node's inventory and reports, including jobs and
  /// incarnations that this store never had.
  std::map<std::string, Incarnation> reported;
  /// Commits that its agent knows from other lives of the store.
  std::set<VersionCommit> commits;
  /// Quarantined replicas: of another life of the store, or of an incarnation that this life never
  /// had.
  std::map<std::pair<ShardKey, Tier>, StoredReplica> other_lives;
  Clock::TimePoint seen;     // last report
  Clock::TimePoint probed;   // when a probe was last sent because the node was silent
  Clock::TimePoint lost_at;  // while not attached; if it never attached, when it was added
  std::optional<Clock::TimePoint> stream_ended;
  std::vector<LocalRank> ranks;  // its trainers as last reported; kept while the node is lost
  uint64_t disk_every = 0;
  uint32_t shared_tiers = 0;  // mask of TierBit: the shared tiers that its agent reaches
  int64_t seen_wall_nanos = 0;
  std::string other_agent;  // address of a second agent that uses this node's name
  Clock::TimePoint other_agent_seen;
};

/// Returns the replica that a node reports at a tier.
constexpr Replica ReplicaAt(NodeIndex node, Tier tier) {
  return {IsShared(tier) ? kNoNode : node, tier};
}

/// A replica whose bytes differ from the sealed ones. It does not count as a replica.
struct DamagedReplica {
  Rank rank;
  Replica replica;
  bool readable = false;  // its node is attached, and other nodes may decode from its good chunks
};

/// The source of a shard that is decoded from its parity group.
inline constexpr Replica kDecode{kNoNode, Tier::kPeer};

struct RankShard {
  bool known = false;  // `digest` is set, from the record or from the first replica report
  uint64_t digest = 0;
  uint64_t image_bytes = 0;
  ReplicaList replicas;  // on attached nodes
  NodeIndex last_node = kNoNode;

  bool IsAt(NodeIndex node, Tier tier) const {
    return std::find(replicas.begin(), replicas.end(), Replica{node, tier}) != replicas.end();
  }
  bool IsAtTier(Tier tier) const {
    return std::any_of(replicas.begin(), replicas.end(),
                       [tier](const Replica& replica) { return replica.tier == tier; });
  }
};

struct VersionState {
  VersionId id;
  uint32_t world = 0;
  Phase phase = Phase::kPending;
  uint32_t tiers = 0;
  uint32_t failed_tiers = 0;
  bool pinned = false;
  bool recorded = false;  // the store has a record of the version
  LifeId adopted_from;    // 0: the version is of this life
  int64_t wall_nanos = 0;
  uint64_t bytes = 0;          // of a committed version
  uint64_t commit_digest = 0;  // of a committed version; see VersionCommit
  std::vector<RankShard> ranks;
  std::vector<RankShard> parity;  // by number in the plan of its incarnation
  PerTier<uint32_t> held;         // ranks with a replica there
  uint32_t held_any = 0;          // ranks with a replica at any tier
  PerTier<uint32_t> parity_held;  // members with their parity there
  /// By node, the shards that it has replicas of: a node that is lost or attaches may be one of
  /// thousands, whose replicas are found without reading every rank.
  std::unordered_map<NodeIndex, std::vector<Rank>> by_node;
  /// The last result of IsFullyAvailable(). Every change of a replica or a tier resets it.
  mutable std::optional<bool> fully_available;
  /// The rank that was found unavailable last. It is checked first.
  mutable uint32_t unavailable = 0;
  /// The last result of ReshardTier(). Every change of a replica resets it.
  mutable std::optional<Tier> reshard_tier;
  std::vector<DamagedReplica> damaged;
  std::vector<std::string> damage_texts;
  /// Checksums of tensor replicas by rank, until the version is committed.
  std::map<TensorBytes, std::map<uint32_t, uint32_t>> samples;
  std::vector<Dispute> disputes;
  std::optional<Verification> verification;  // the last one

  uint32_t held_at(Tier tier) const { return held[tier]; }
  uint32_t parity_held_at(Tier tier) const { return parity_held[tier]; }
  bool any_at(Tier tier) const { return held[tier] != 0 || parity_held[tier] != 0; }
  bool any_in_memory() const { return any_at(Tier::kMemory); }
  /// Whether replicas are left that only a removal deletes.
  bool any_stored() const {
    return std::any_of(kTierTable.begin(), kTierTable.end(), [this](const TierTraits& traits) {
      return IsStored(traits.tier) && any_at(traits.tier);
    });
  }
  bool any_parity() const {
    return std::any_of(kTierTable.begin(), kTierTable.end(),
                       [this](const TierTraits& traits) { return parity_held[traits.tier] != 0; });
  }
  /// Returns a rank's shard or a member's parity; nullptr if the version has none for `rank`.
  RankShard* Shard(Rank rank);
  bool committed() const { return phase == Phase::kCommitted; }
  bool committed_at(Tier tier) const { return committed() && (tiers & TierBit(tier)) != 0; }
  /// Whether the version is committed at a tier that outlives the memory of all nodes.
  bool committed_stored() const { return committed() && (tiers & kStoredTiers) != 0; }
  /// Returns false if the replica was known already.
  bool AddReplica(Rank rank, Replica replica);
  /// Returns false if there was no such replica.
  bool RemoveReplica(Rank rank, Replica replica);
  /// Removes each replica, also of parity, for which `drop` returns true. Damaged ones stay in
  /// `damaged` and are no longer readable.
  template <typename Drop>
  void RemoveReplicasIf(const Drop& drop);
  /// The same for all replicas on a node.
  void RemoveReplicasOf(NodeIndex node);
  /// Calls `visit` with each replica, also of parity, and each damaged one that is readable.
  template <typename Visit>
  void ForEachReplica(const Visit& visit) const;
  /// Returns nullptr if the replica is not known to be damaged.
  DamagedReplica* Damaged(Rank rank, Replica replica);
  /// Whether the replica is damaged and its good chunks can be read.
  bool IsReadable(Rank rank, Replica replica) const;
};

template <typename Drop>
void VersionState::RemoveReplicasIf(const Drop& drop) {
  auto remove = [&](const ReplicaList& replicas, Rank rank) {
    for (size_t i = replicas.size(); i-- > 0;) {
      Replica replica = replicas[i];
      if (drop(replica)) RemoveReplica(rank, replica);
    }
  };
  for (DamagedReplica& bad : damaged) bad.readable = bad.readable && !drop(bad.replica);
  for (uint32_t i = 0; held_any != 0 && i < ranks.size(); ++i) remove(ranks[i].replicas, Rank{i});
  for (uint32_t i = 0; i < parity.size(); ++i) remove(parity[i].replicas, ParityRank(i));
}

template <typename Visit>
void VersionState::ForEachReplica(const Visit& visit) const {
  for (const std::vector<RankShard>* shards : {&ranks, &parity}) {
    for (const RankShard& shard : *shards) {
      for (const Replica& replica : shard.replicas) visit(replica);
    }
  }
  for (const DamagedReplica& bad : damaged) {
    if (bad.readable) visit(bad.replica);
  }
}

/// Lookup tables for the parity groups of an incarnation.
struct GroupIndex {
  struct Member {
    uint32_t group = 0;
    uint32_t position = 0;
    NodeIndex node = kNoNode;
  };
  std::vector<Member> members;            // by number
  std::vector<uint32_t> firsts;           // by group: number of its first member
  std::vector<uint32_t> by_rank;          // number of the member whose image has the rank
  std::map<NodeIndex, uint32_t> by_node;  // number of the node's membership
  std::set<std::string> replaced;         // nodes whose places other nodes have
};

/// One rank's part of a restore.
struct RestoreTask {
  enum class Phase { kIdle, kPreparing, kReady };
  struct Tried {
    Replica replica;
    uint32_t attempts = 0;
  };
  Phase phase = Phase::kIdle;
  std::optional<uint64_t> request;  // of the directive in progress
  Clock::TimePoint begun_at;        // likewise
  NodeIndex target = kNoNode;
  Replica source;
  std::vector<Tried> tried;  // sources that failed, perhaps temporarily
  Clock::TimePoint retry_at;
};

struct RestoreWaiter {
  RequestId request = 0;
  Rank rank;
  Clock::TimePoint since;
  bool reshard = false;                  // see RestoreRequest
  std::optional<VersionId> wanted = {};  // for a rollback; empty: the newest
};

/// The restore of the current incarnation: prepared in advance, then decided once. An event must
/// not read the tasks or the waiting ranks one by one: each rank of a large world causes several
/// events.
struct RestorePlan {
  bool open = false;
  std::optional<VersionId> candidate;
  std::optional<VersionId> wanted;
  std::vector<RestoreTask> tasks;  // by rank
  uint32_t ready = 0;
  /// Ranks with a node whose task is idle, and those whose task became ready or that requested
  /// their shard since AdvanceRestore() was last called. Nothing can be done for the others.
  std::set<Rank> due;
  std::set<Rank> failed;  // ranks whose task has failed sources
  /// Target and source nodes of attempts that ended with a timeout.
  std::set<std::pair<NodeIndex, NodeIndex>> unreached;
  /// By node, the ranks whose task has had it as its target or its source.
  std::unordered_map<NodeIndex, std::vector<Rank>> involved;
  std::multimap<Rank, RestoreWaiter> waiters;  // ranks that request their own shard
  std::vector<RestoreWaiter> reshards;         // ranks that request all shards
  Clock::TimePoint waiting_since{};            // when the first of them came
  std::map<VersionId, std::string> unusable;   // versions that could not be prepared, and why
  /// The version that the running incarnation rolled back to last; retention keeps it.
  std::optional<VersionId> rolled_back_to;
  std::vector<RestoreWaiter> rollbacks;            // to a named version
  std::vector<RestoreWaiter> rollbacks_to_newest;  // answered when all ranks wait

  /// Adds a rank that waits for the decision.
  void Wait(const RestoreWaiter& waiter);
  /// Adds a rank that waits for a rollback.
  void RollBack(const RestoreWaiter& waiter);
  bool is_awaited() const { return !waiters.empty() || !reshards.empty(); }
  /// Whether at least one rank waits, and every waiting rank reshards.
  bool reshards_only() const { return waiters.empty() && !reshards.empty(); }
};

/// A shard that is missing at a tier where its version is committed.
struct RepairKey {
  VersionId version;
  Rank rank;
  Tier tier = Tier::kMemory;
  auto operator<=>(const RepairKey&) const = default;
};

/// The repair of a missing shard.
struct Repair {
  NodeIndex target = kNoNode;
  std::optional<uint64_t> request;  // of the directive in progress
  uint32_t attempts = 0;
  Clock::TimePoint not_before;
  std::string failure;  // of the last attempt
};

/// A version on disk that lacks some of the shards that its parity groups should keep there.
struct UnderProtectedVersion {
  uint32_t shards = 0;  // that should be there: ranks' shards and parity
  uint32_t present = 0;
  std::string missing;       // names of the missing shards, for operators
  Clock::TimePoint since{};  // when the first shard was found missing
};

/// A join that waits until the ranks of the previous start have ended.
struct WaitingJoin {
  RankJoined event;
  Clock::TimePoint deadline;
};

/// The version that is being copied to a tier (TierPace::kCopy).
struct TierCopy {
  std::optional<VersionId> version;
  std::optional<VersionId> wanted;  // a trainer waits until this version is at the tier
  Clock::TimePoint committed_at{};  // when the last copy was committed, or the state was loaded
};

/// A version whose replicas at a tier are to be removed.
struct Removal {
  NodeIndex node = kNoNode;  // kNoNode: of a shared tier
  VersionId version;
  Tier tier = Tier::kDisk;
  auto operator<=>(const Removal&) const = default;
};

struct Job {
  std::string name;
  uint32_t uid = 0;
  Incarnation incarnation;
  Step abort_floor;
  std::map<Incarnation, LineageRecord> lineages;
  std::map<VersionId, VersionState> versions;
  std::set<NodeIndex> nodes_now;
  std::set<NodeIndex> nodes_before;
  /// The node that BarrierOpen() waited for last. It is checked first.
  mutable NodeIndex barrier_closed_by = kNoNode;
  std::set<NodeIndex> subscribers;    // nodes that receive the job state
  std::vector<NodeIndex> rank_nodes;  // by rank of the current incarnation
  std::vector<uint64_t> slot_bytes;   // by rank of the current incarnation; 0: unknown
  uint32_t ranks_joined = 0;
  std::deque<WaitingJoin> waiting_joins;  // by deadline
  Incarnation waiting_for_end_of;         // the incarnation whose ranks they wait for
  std::set<LifeId> adopted_lives;         // lives that versions were adopted from
  RestorePlan plan;
  Step newest_seen;
  PerTier<TierTarget> targets;                      // of the tiers with TierPace::kTarget
  PerTier<TierCopy> copies;                         // of the tiers with TierPace::kCopy
  std::map<Incarnation, GroupIndex> group_indexes;  // of incarnations with a plan
  std::map<RepairKey, Repair> repairs;
  bool repair_due = false;
  std::map<VersionId, UnderProtectedVersion> under_protected;
  Clock::TimePoint under_protected_counted_at{};
  Clock::TimePoint joined_at{};  // when a rank joined last, or the state was loaded

  // Running, ended, finished, released; see lifecycle.h.
  JobPhase phase = JobPhase::kRunning;
  std::map<Rank, NodeIndex> connected;  // trainers of the current incarnation
  std::set<Rank> goodbyes;              // ranks of it that ended with a goodbye
  bool finished = false;                // of the current incarnation; stored
  bool released = false;                // nodes release the job's memory
  Clock::TimePoint alive_at;            // when a trainer was last known to run
  Clock::TimePoint newest_at;           // when newest_seen last grew, or the incarnation opened
  Clock::TimePoint ended_at;
  int64_t ended_wall_nanos = 0;
  std::optional<VersionId> wanted;      // a trainer waits until this version is at another tier
  std::optional<VersionId> flush;       // every rank writes it to disk since a node leaves
  std::optional<VersionId> peer_flush;  // the last one for which a flush set the peer target back
  uint64_t keep_last = 0;
  uint64_t keep_every = 0;
  Incarnation forgotten_upto;
  /// Disputes of the current incarnation. A dispute ends when a comparison finds its bytes equal.
  std::vector<Dispute> disputes;

  uint64_t committed_total = 0;  // since the coordinator's start
  uint64_t aborted_total = 0;

  /// Nodes of `nodes_now` that the record lacks, and when it is stored at the latest.
  size_t unrecorded = 0;
  std::optional<Clock::TimePoint> record_due_at;
  bool record_due = false;  // FinishBatch() stores the record in any case

  // What the event that is being applied has changed.
  bool changed = false;            // ApplyChanges() updates restore plan, retention and targets
  bool job_state_changed = false;  // ApplyChanges() sends the job state to every subscriber
  bool retention_due = false;
  std::set<NodeIndex> job_state_to;  // nodes that get the job state in any case
  std::set<Removal> removals;

  /// Returns nullptr for a tier without a target.
  TierTarget* target(Tier tier) {
    return TraitsOf(tier).pace == TierPace::kTarget ? &targets[tier] : nullptr;
  }
  /// Returns nullptr if there is no such version.
  const VersionState* FindVersion(std::optional<VersionId> id) const {
    const auto found = id ? versions.find(*id) : versions.end();
    return found == versions.end() ? nullptr : &found->second;
  }
  VersionState* FindVersion(std::optional<VersionId> id) {
    return const_cast<VersionState*>(std::as_const(*this).FindVersion(id));
  }
  /// Returns nullptr if the incarnation has no parity groups.
  const GroupIndex* groups_of(Incarnation of) const {
    auto found = group_indexes.find(of);
    return found == group_indexes.end() ? nullptr : &found->second;
  }
  LineageRecord& lineage() { return lineages.at(incarnation); }
  const LineageRecord& lineage() const { return lineages.at(incarnation); }
};

/// A forgotten job, until every node has removed its replicas of the job.
struct ForgottenJob {
  using Place = std::pair<ShardKey, Tier>;
  Incarnation upto;
  /// By node: its remaining replicas. nullopt: the node has not attached since the job was
  /// forgotten.
  std::map<NodeIndex, std::optional<std::set<Place>>> left;
};

}  // namespace holdfast::coord
