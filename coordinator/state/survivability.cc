#include "coordinator/state/survivability.h"

#include <algorithm>
#include <map>
#include <vector>

#include "storage/erasure/coding_tables.h"
#include "storage/erasure/survivability.h"

namespace holdfast::coord {
namespace {
bool IsHeld(const VersionState& version, Rank rank, const RankShard& shard, NodeIndex node,
            uint32_t tiers) {
  const auto counts = [&](const Replica& replica) {
    return replica.node == node && (TierBit(replica.tier) & tiers) != 0;
  };
  if (std::any_of(shard.replicas.begin(), shard.replicas.end(), counts)) return true;
  return (tiers & kIncludeDamaged) != 0 &&
         std::any_of(version.damaged.begin(), version.damaged.end(),
                     [&](const DamagedReplica& bad) {
                       return bad.readable && bad.rank == rank && counts(bad.replica);
                     });
}

uint32_t ParityOf(const Job& job, Incarnation incarnation, uint32_t group) {
  return job.lineages.at(incarnation).peers[group].parity;
}

/// Whether an incarnation after `incarnation` has parity groups.
bool LaterHasGroups(const Job& job, Incarnation incarnation) {
  return std::any_of(job.lineages.upper_bound(incarnation), job.lineages.end(),
                     [](const auto& entry) { return !entry.second.peers.empty(); });
}

/// Begins with the rank that was unavailable last: while nodes attach or are lost one after
/// another, it mostly still is.
bool EveryRankIsAvailable(const Job& job, const VersionState& version, uint32_t tiers) {
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr) return false;
  std::map<uint32_t, bool> decodes;  // by group
  const uint32_t first = version.unavailable;
  for (uint32_t i = 0; i < version.world; ++i) {
    const uint32_t rank = (first + i) % version.world;
    if (!version.ranks[rank].replicas.empty()) continue;
    const uint32_t group = groups->members[groups->by_rank[rank]].group;
    const auto [known, added] = decodes.try_emplace(group);
    if (added) known->second = CanDecodeGroup(job, version, group, tiers);
    if (known->second) continue;
    version.unavailable = rank;
    return false;
  }
  return true;
}
}  // namespace

const PlannedMember& MemberAt(const Job& job, Incarnation incarnation, uint32_t number) {
  const GroupIndex::Member& member = job.group_indexes.at(incarnation).members[number];
  return job.lineages.at(incarnation).peers[member.group].members[member.position];
}

bool HasData(const Job& job, const VersionState& version, uint32_t number, uint32_t tiers) {
  const NodeIndex node = job.group_indexes.at(version.id.incarnation).members[number].node;
  const std::vector<PlanRank>& ranks = MemberAt(job, version.id.incarnation, number).ranks;
  return std::all_of(ranks.begin(), ranks.end(), [&](const PlanRank& rank) {
    return IsHeld(version, rank.rank, version.ranks[rank.rank.value], node, tiers);
  });
}

bool HasParity(const Job& job, const VersionState& version, uint32_t number, uint32_t tiers) {
  const NodeIndex node = job.group_indexes.at(version.id.incarnation).members[number].node;
  return IsHeld(version, ParityRank(number), version.parity[number], node, tiers);
}

bool CanDecodeGroup(const Job& job, const VersionState& version, uint32_t group, uint32_t tiers) {
  return Erasures(job, version, group, tiers) <= ParityOf(job, version.id.incarnation, group);
}

uint32_t Erasures(const Job& job, const VersionState& version, uint32_t group, uint32_t tiers) {
  const uint32_t first = job.group_indexes.at(version.id.incarnation).firsts[group];
  const PlannedGroup& planned = job.lineages.at(version.id.incarnation).peers[group];
  const auto n = static_cast<uint32_t>(planned.members.size());
  std::vector<NodeShards> nodes;
  for (uint32_t i = 0; i < n; ++i) {
    nodes.push_back(
        {HasData(job, version, first + i, tiers), HasParity(job, version, first + i, tiers)});
  }
  return ErasuresInWorstStripe(planned.parity, nodes);
}

bool MayDecode(const VersionState& version) {
  return version.committed_at(Tier::kPeer) || version.committed_at(Tier::kDisk);
}

bool IsCompleteAtPeer(const Job& job, const VersionState& version) {
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr) return false;
  const auto complete = [&](Tier tier) {
    if (!version.committed_at(tier)) return false;
    if (version.parity_held_at(tier) != groups->members.size()) return false;
    if (version.held_at(tier) != version.world) return false;
    for (uint32_t number = 0; number < groups->members.size(); ++number) {
      if (!HasData(job, version, number, TierBit(tier))) return false;
      if (!HasParity(job, version, number, TierBit(tier))) return false;
    }
    return true;
  };
  // To build parity of a later incarnation, agents free parity in memory that is not committed at
  // peer. The report of that may be on its way, so from then on only the disks count.
  const bool kept = !LaterHasGroups(job, version.id.incarnation);
  return (kept && complete(Tier::kMemory)) || complete(Tier::kDisk);
}

bool CanDecode(const Job& job, const VersionState& version, Rank rank, uint32_t tiers) {
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr || !MayDecode(version)) return false;
  return CanDecodeGroup(job, version, groups->members[groups->by_rank[rank.value]].group, tiers);
}

bool IsAvailable(const Job& job, const VersionState& version, Rank rank, uint32_t tiers) {
  return !version.ranks[rank.value].replicas.empty() || CanDecode(job, version, rank, tiers);
}

bool IsFullyAvailable(const Job& job, const VersionState& version) {
  if (version.held_any == version.world) return true;
  if (!MayDecode(version)) return false;
  // Cached: called for every event of a restore, and the cost grows with the world.
  if (!version.fully_available) {
    version.fully_available = EveryRankIsAvailable(job, version, kAnyTier);
  }
  return *version.fully_available;
}

bool MayBeFullyAvailable(const Job& job, const VersionState& version) {
  if (IsFullyAvailable(job, version)) return true;
  if (version.damaged.empty() || !MayDecode(version)) return false;
  return EveryRankIsAvailable(job, version, kAnyTier | kIncludeDamaged);
}

std::optional<uint32_t> PeerMargin(const Job& job, const VersionState& version, uint32_t tiers) {
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr) return std::nullopt;
  uint32_t least = kCodeParityMax;
  for (uint32_t group = 0; group < groups->firsts.size(); ++group) {
    const uint32_t parity = ParityOf(job, version.id.incarnation, group);
    const uint32_t erasures = Erasures(job, version, group, tiers);
    if (erasures > parity) return std::nullopt;
    least = std::min(least, parity - erasures);
  }
  return least;
}

}  // namespace holdfast::coord
