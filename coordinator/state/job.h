#pragma once

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/state/events.h"
#include "coordinator/state/records.h"

// The parts of State. Plain data; the rules are in state.h and its sources.

namespace holdfast::coord {

/// Index of a node in State; nodes are never forgotten, so it stays valid.
using NodeIndex = uint32_t;
inline constexpr NodeIndex kNoNode = ~NodeIndex{0};

struct Node {
  std::string name;
  bool attached = false;
  AttachId attach = 0;
  uint64_t agent_start = 0;
  std::string data_address;
  NodeHealth health;
  Clock::TimePoint seen;     // last word from it
  Clock::TimePoint lost_at;  // when not attached; the coordinator's start when never seen
  std::optional<Clock::TimePoint> stream_ended;
  int64_t seen_wall_nanos = 0;
};

struct Copy {
  NodeIndex node = kNoNode;
  Tier tier = Tier::kMemory;
  bool operator==(const Copy&) const = default;
};

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
  int64_t wall_nanos = 0;
  uint64_t bytes = 0;  // of a committed version
  std::vector<RankShard> ranks;
  std::array<uint32_t, 5> held{};  // by tier: ranks with a copy there
  uint32_t held_any = 0;           // ranks with a copy anywhere
  std::vector<std::pair<Rank, Copy>> damaged;
  std::vector<std::string> damage_texts;

  uint32_t held_at(Tier tier) const { return held[static_cast<size_t>(tier)]; }
  bool committed() const { return phase == Phase::kCommitted; }
  bool committed_at(Tier tier) const { return committed() && (tiers & TierBit(tier)) != 0; }
  /// False when it was there.
  bool AddCopy(Rank rank, Copy copy);
  /// False when it was not there.
  bool RemoveCopy(Rank rank, Copy copy);
  /// Removes every copy that `drop` accepts.
  template <typename Drop>
  void RemoveCopiesIf(const Drop& drop);
  bool IsDamaged(Rank rank, Copy copy) const;
};

template <typename Drop>
void VersionState::RemoveCopiesIf(const Drop& drop) {
  if (held_any == 0) return;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<Copy>& copies = ranks[rank].copies;
    for (size_t i = copies.size(); i-- > 0;) {
      Copy copy = copies[i];
      if (drop(copy)) RemoveCopy(Rank{rank}, copy);
    }
  }
}

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
  uint32_t ranks_joined = 0;
  RestorePlan plan;
  Step newest_seen;
  Step disk_target;
  std::set<Rank> disk_answered;  // ranks that answered the disk target
  bool disk_resolved = false;
  uint64_t committed_total = 0;  // since the coordinator's start
  uint64_t aborted_total = 0;

  // What the event that is being applied changed.
  bool changed = false;       // plan, retention and words are looked at again
  bool word_changed = false;  // every node of the audience hears
  bool retention_due = false;
  std::set<NodeIndex> word_to;
  std::set<std::pair<NodeIndex, VersionId>> remove_disk;

  LineageRecord& lineage() { return lineages.at(incarnation); }
  const LineageRecord& lineage() const { return lineages.at(incarnation); }
};

}  // namespace holdfast::coord
