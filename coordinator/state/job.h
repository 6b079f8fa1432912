#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/state/events.h"
#include "coordinator/state/records.h"
#include "coordinator/state/tier_target.h"

// The parts of State. Plain data; the rules are in state.h and its sources.

namespace holdfast::coord {

/// Index of a node in State; nodes are never forgotten, so it stays valid.
using NodeIndex = uint32_t;
inline constexpr NodeIndex kNoNode = ~NodeIndex{0};

/// The uid of a job that was adopted: the first who joins becomes its owner.
inline constexpr uint32_t kNobodyYet = ~uint32_t{0};

struct Node {
  std::string name;
  bool attached = false;
  AttachId attach = 0;
  uint64_t agent_start = 0;
  uint64_t agent_id = 0;
  std::string data_address;
  std::string peer_address;
  Labels labels;
  NodeHealth health;
  /// The highest incarnation of each job that it listed or reported something of, also of jobs and
  /// incarnations that this store never had.
  std::map<std::string, Incarnation> reported;
  /// Copies that count for nothing: of another life of the store, or of a start that it never had.
  std::map<std::pair<ShardKey, Tier>, Holding> other_lives;
  Clock::TimePoint seen;     // last word from it
  Clock::TimePoint probed;   // when its silence was last answered by a directive
  Clock::TimePoint lost_at;  // when not attached; the coordinator's start when never seen
  std::optional<Clock::TimePoint> stream_ended;
  std::vector<LocalRank> ranks;  // its trainers; what it said last also when it is lost
  uint64_t disk_every = 0;
  int64_t seen_wall_nanos = 0;
  std::string rival;  // another agent wants this node's name: its address
  Clock::TimePoint rival_seen;
};

struct Copy {
  NodeIndex node = kNoNode;
  Tier tier = Tier::kMemory;
  bool operator==(const Copy&) const = default;
};

/// A copy that is not what was sealed. It counts for nothing by itself.
struct DamagedCopy {
  Rank rank;
  Copy copy;
  bool readable = false;  // its node is attached and has its good chunks, for others to decode from
};

/// Stands for the group of a shard's planned node as the source.
inline constexpr Copy kDecode{kNoNode, Tier::kPeer};

struct RankShard {
  bool known = false;  // digest and image_bytes are set: by the record or the first holding
  uint64_t digest = 0;
  uint64_t image_bytes = 0;
  std::vector<Copy> copies;  // on attached nodes
  NodeIndex last_node = kNoNode;
};

struct VersionState {
  VersionId id;
  uint32_t world = 0;
  Phase phase = Phase::kPending;
  uint32_t tiers = 0;
  uint32_t failed_tiers = 0;
  bool pinned = false;
  bool recorded = false;  // the store has a record of it
  LifeId adopted_from;    // 0: it is of this life
  int64_t wall_nanos = 0;
  uint64_t bytes = 0;  // of a committed version
  std::vector<RankShard> ranks;
  std::vector<RankShard> parity;          // by number in the plan of its incarnation
  std::array<uint32_t, 5> held{};         // by tier: ranks with a copy there
  uint32_t held_any = 0;                  // ranks with a copy anywhere
  std::array<uint32_t, 5> parity_held{};  // by tier: nodes with their parity there
  /// What IsWhole() found last; forgotten with every change of a copy or a tier.
  mutable std::optional<bool> whole;
  std::vector<DamagedCopy> damaged;
  std::vector<std::string> damage_texts;
  /// Of replicas, until the version is committed: rank → checksum.
  std::map<TensorBytes, std::map<uint32_t, uint32_t>> samples;
  std::vector<Dispute> disputes;

  uint32_t held_at(Tier tier) const { return held[static_cast<size_t>(tier)]; }
  uint32_t parity_held_at(Tier tier) const { return parity_held[static_cast<size_t>(tier)]; }
  bool any_on_disk() const { return held_at(Tier::kDisk) != 0 || parity_held_at(Tier::kDisk) != 0; }
  bool any_in_memory() const {
    return held_at(Tier::kMemory) != 0 || parity_held_at(Tier::kMemory) != 0;
  }
  bool any_parity() const {
    return std::any_of(parity_held.begin(), parity_held.end(), [](uint32_t n) { return n != 0; });
  }
  /// A rank's shard or a node's parity; nullptr when the version has no such.
  RankShard* Shard(Rank rank);
  bool committed() const { return phase == Phase::kCommitted; }
  bool committed_at(Tier tier) const { return committed() && (tiers & TierBit(tier)) != 0; }
  /// False when it was there.
  bool AddCopy(Rank rank, Copy copy);
  /// False when it was not there.
  bool RemoveCopy(Rank rank, Copy copy);
  /// Removes every copy, also of parity, that `drop` accepts; of damaged ones what is readable.
  template <typename Drop>
  void RemoveCopiesIf(const Drop& drop);
  /// Calls `visit` with each copy, also of parity, and those that are damaged but there.
  template <typename Visit>
  void ForEachCopy(const Visit& visit) const;
  /// Nullptr when the copy is not known to be damaged.
  DamagedCopy* Damaged(Rank rank, Copy copy);
  /// The damaged copy has good chunks where it lies.
  bool IsReadable(Rank rank, Copy copy) const;
};

template <typename Drop>
void VersionState::RemoveCopiesIf(const Drop& drop) {
  auto remove = [&](const std::vector<Copy>& copies, Rank rank) {
    for (size_t i = copies.size(); i-- > 0;) {
      Copy copy = copies[i];
      if (drop(copy)) RemoveCopy(rank, copy);
    }
  };
  for (DamagedCopy& bad : damaged) bad.readable = bad.readable && !drop(bad.copy);
  for (uint32_t i = 0; held_any != 0 && i < ranks.size(); ++i) remove(ranks[i].copies, Rank{i});
  for (uint32_t i = 0; i < parity.size(); ++i) remove(parity[i].copies, ParityRank(i));
}

template <typename Visit>
void VersionState::ForEachCopy(const Visit& visit) const {
  for (const std::vector<RankShard>* shards : {&ranks, &parity}) {
    for (const RankShard& shard : *shards) {
      for (const Copy& copy : shard.copies) visit(copy);
    }
  }
  for (const DamagedCopy& bad : damaged) {
    if (bad.readable) visit(bad.copy);
  }
}

/// The plan of an incarnation, to be looked up.
struct PeerSeats {
  struct Seat {
    uint32_t group = 0;
    uint32_t position = 0;
    NodeIndex node = kNoNode;
  };
  std::vector<Seat> seats;                // by number
  std::vector<uint32_t> firsts;           // by group: number of its first member
  std::vector<uint32_t> by_rank;          // number of the node whose image has the rank
  std::map<NodeIndex, uint32_t> by_node;  // number of the node
};

/// One rank's part of a restore.
struct RestoreLeg {
  enum class Phase { kIdle, kPreparing, kReady };
  struct Tried {
    Copy copy;
    uint32_t attempts = 0;
  };
  Phase phase = Phase::kIdle;
  uint64_t request = 0;
  NodeIndex target = kNoNode;
  Copy source;
  std::vector<Tried> tried;  // failures that may pass
  Clock::TimePoint retry_at;
};

struct RestoreAsk {
  RequestId request = 0;
  Rank rank;
  Clock::TimePoint since;
  bool view = false;      // see RestoreWanted
  VersionId wanted = {};  // of a rollback; incarnation 0: the newest
};

/// The restore of the current incarnation: prefetched, then decided once.
struct RestorePlan {
  bool open = false;
  VersionId candidate;  // incarnation 0: none
  VersionId wanted;
  std::vector<RestoreLeg> legs;  // by rank
  uint32_t ready = 0;
  std::vector<RestoreAsk> asks;
  std::map<VersionId, std::string> unusable;  // tried in vain, and why
  /// What the running incarnation went back to last, of its own or older versions; kept for it.
  VersionId rolled_back_to;
  std::vector<RestoreAsk> rollbacks;  // of ranks that go back in mid-run

  /// Somebody asks, and nobody for a shard of his own.
  bool views_only() const {
    return !asks.empty() &&
           std::all_of(asks.begin(), asks.end(), [](const RestoreAsk& ask) { return ask.view; });
  }
};

/// A shard that is missing at a tier where its version is committed.
struct RepairKey {
  VersionId version;
  Rank rank;
  Tier tier = Tier::kMemory;
  auto operator<=>(const RepairKey&) const = default;
};

/// What is being done about it.
struct Repair {
  NodeIndex target = kNoNode;
  uint64_t request = 0;  // 0: not ordered
  uint32_t attempts = 0;
  Clock::TimePoint not_before;
  std::string failure;  // of the last attempt
};

/// A version on disk that lacks some of what its parity groups are to keep of it there.
struct Lacking {
  uint32_t shards = 0;  // that are to be there: of ranks, and parity
  uint32_t present = 0;
  std::string which;         // is missing, for people
  Clock::TimePoint since{};  // it is so
};

/// A Join that waits until the ranks of the start before it are gone.
struct WaitingJoin {
  RankJoined event;
  Clock::TimePoint deadline;
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
  std::set<NodeIndex> audience;       // who gets its words
  std::vector<NodeIndex> rank_nodes;  // by rank of the current incarnation
  std::vector<uint64_t> slot_bytes;   // likewise; 0: not said
  uint32_t ranks_joined = 0;
  std::vector<WaitingJoin> waiting_joins;
  std::set<LifeId> adopted_lives;  // it has versions of these
  RestorePlan plan;
  Step newest_seen;
  TierTarget disk_target;
  TierTarget peer_target;
  std::map<Incarnation, PeerSeats> seats;  // of incarnations with a plan
  std::map<RepairKey, Repair> repairs;
  bool repair_due = false;
  std::map<VersionId, Lacking> lacking;
  Clock::TimePoint lacking_at{};  // when it was counted
  Clock::TimePoint joined_at{};   // when a rank joined last, or the state was loaded

  // Its life; see lifecycle.cc.
  JobPhase phase = JobPhase::kRunning;
  std::map<Rank, NodeIndex> connected;  // trainers of the current incarnation
  std::set<Rank> goodbyes;              // ranks of it whose trainer said goodbye
  bool finished = false;                // of the current incarnation; stored
  bool released = false;                // its memory is given back
  Clock::TimePoint alive_at;            // the last sign of a trainer
  Clock::TimePoint newest_at;           // when newest_seen grew, or the job started
  Clock::TimePoint ended_at;
  int64_t ended_wall_nanos = 0;
  VersionId wanted;  // a trainer waits for it at a further tier
  uint64_t keep_last = 0;
  uint64_t keep_every = 0;
  Incarnation forgotten_upto;
  /// Of the current incarnation, until the same bytes are found equal.
  std::vector<Dispute> disputes;

  uint64_t committed_total = 0;  // since the coordinator's start
  uint64_t aborted_total = 0;

  // What the event that is being applied changed.
  bool changed = false;       // plan, retention and words are looked at again
  bool word_changed = false;  // every node of the audience hears
  bool retention_due = false;
  std::set<NodeIndex> word_to;
  std::set<std::pair<NodeIndex, VersionId>> remove_disk;

  /// Nullptr for a tier whose writers each take what they want.
  TierTarget* target(Tier tier) {
    return tier == Tier::kDisk ? &disk_target : tier == Tier::kPeer ? &peer_target : nullptr;
  }
  /// Nullptr without a plan.
  const PeerSeats* seats_of(Incarnation of) const {
    auto found = seats.find(of);
    return found == seats.end() ? nullptr : &found->second;
  }
  LineageRecord& lineage() { return lineages.at(incarnation); }
  const LineageRecord& lineage() const { return lineages.at(incarnation); }
};

/// A job that is forgotten, until every node has dropped what it had of it.
struct ForgottenJob {
  using Place = std::pair<ShardKey, Tier>;
  Incarnation upto;
  /// By node: what it is known to have; nothing: it has not attached since.
  std::map<NodeIndex, std::optional<std::set<Place>>> left;
};

}  // namespace holdfast::coord
