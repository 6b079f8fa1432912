#include "coordinator/state/peers.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/groups.h"
#include "coordinator/state/state.h"
#include "storage/erasure/coding_tables.h"
#include "storage/erasure/survivability.h"

// Parity groups: when they are planned, and which shards they can decode.

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

bool Survives(const Job& job, const VersionState& version, uint32_t group,
              uint32_t tiers = kAnyTier) {
  return Erasures(job, version, group, tiers) <= ParityOf(job, version.id.incarnation, group);
}

bool EveryRankIsAvailable(const Job& job, const VersionState& version, uint32_t tiers) {
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr) return false;
  std::vector<bool> survives(groups->firsts.size());
  for (uint32_t group = 0; group < survives.size(); ++group) {
    survives[group] = Survives(job, version, group, tiers);
  }
  for (uint32_t rank = 0; rank < version.world; ++rank) {
    const bool held = !version.ranks[rank].replicas.empty();
    if (!held && !survives[groups->members[groups->by_rank[rank]].group]) return false;
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
  return complete(Tier::kMemory) || complete(Tier::kDisk);
}

bool CanDecode(const Job& job, const VersionState& version, Rank rank, uint32_t tiers) {
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr || !MayDecode(version)) return false;
  return Survives(job, version, groups->members[groups->by_rank[rank.value]].group, tiers);
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

bool MayReachPeer(const Job& job, const VersionState& version) {
  return version.id.incarnation == job.incarnation && job.groups_of(job.incarnation) != nullptr &&
         version.id.step >= job.peer_target.step() &&
         ((version.tiers | version.failed_tiers) & TierBit(Tier::kPeer)) == 0;
}

bool ParityAwaitsMemory(const Job& job) {
  const size_t members = job.group_indexes.at(job.incarnation).members.size();
  auto it = job.versions.lower_bound({job.incarnation, job.peer_target.step()});
  return std::any_of(it, job.versions.end(), [&](const auto& entry) {
    const VersionState& version = entry.second;
    return version.phase == Phase::kPending && MayReachPeer(job, version) &&
           version.parity_held_at(Tier::kMemory) == members;
  });
}

/// Returns why the job has no parity groups; empty if it has a plan or one can be made.
std::string State::WhyNoPeers(const Job& job) const {
  if (!job.lineage().peers.empty()) return "";
  if (!options_.peers.enabled) return "peers are disabled";
  const uint32_t world = job.lineage().world;
  if (job.ranks_joined != world) {
    return fmt::format("{} of {} ranks have joined", job.ranks_joined, world);
  }
  std::map<NodeIndex, uint32_t> nodes;
  for (uint32_t rank = 0; rank < world; ++rank) {
    const Node& node = nodes_[job.rank_nodes[rank]];
    if (job.slot_bytes[rank] == 0) {
      return fmt::format("rank {}'s agent on node {} did not report the size of its slots", rank,
                         node.name);
    }
    if (job.slot_bytes[rank] % kSlotBytesAlign != 0 || job.slot_bytes[rank] > kSlotBytesMax) {
      return fmt::format("rank {} has slots of {} bytes", rank, job.slot_bytes[rank]);
    }
    if (node.peer_address.empty()) {
      return fmt::format("node {} has no listener for its peers", node.name);
    }
    if (++nodes[job.rank_nodes[rank]] > kMemberRanksMax) {
      return fmt::format("node {} has more than {} ranks", node.name, kMemberRanksMax);
    }
  }
  return nodes.size() < 2 ? "all ranks are on one node" : "";
}

/// Plans the parity groups once all ranks have joined. The plan holds for the rest of the
/// incarnation.
void State::PlanPeers(Job& job) {
  if (!job.lineage().peers.empty() || !WhyNoPeers(job).empty()) return;
  std::map<NodeIndex, PlannedMember> members;
  for (uint32_t rank = 0; rank < job.lineage().world; ++rank) {
    PlannedMember& member = members[job.rank_nodes[rank]];
    member.ranks.push_back({Rank{rank}, job.slot_bytes[rank]});
  }
  std::vector<PlannedMember> nodes;
  for (auto& [index, member] : members) {
    const Node& node = nodes_[index];
    member.node = node.name;
    auto domain = node.labels.find(options_.peers.domain_label);
    if (domain != node.labels.end()) member.domain = domain->second;
    nodes.push_back(std::move(member));
  }
  PeerPlan previous;
  for (const auto& [incarnation, lineage] : job.lineages) {
    if (!lineage.peers.empty()) previous = lineage.peers;
  }
  LineageRecord& lineage = job.lineage();
  lineage.peers = PlaceInGroups(std::move(nodes), previous, options_.peers.groups);
  IndexGroups(job, job.incarnation);
  effects_.emplace_back(PutLineage{lineage, LineageChange::kPlanned});
  job.changed = true;
  job.job_state_changed = true;
}

/// Builds the lookup tables for the plan of an incarnation.
void State::IndexGroups(Job& job, Incarnation incarnation) {
  GroupIndex& groups = job.group_indexes[incarnation];
  const LineageRecord& lineage = job.lineages.at(incarnation);
  groups.by_rank.resize(lineage.world);
  for (uint32_t group = 0; group < lineage.peers.size(); ++group) {
    groups.firsts.push_back(static_cast<uint32_t>(groups.members.size()));
    const std::vector<PlannedMember>& members = lineage.peers[group].members;
    for (uint32_t position = 0; position < members.size(); ++position) {
      const uint32_t number = static_cast<uint32_t>(groups.members.size());
      groups.members.push_back({group, position, Intern(members[position].place())});
      // A node may also have taken over another member's place: look it up by its own place.
      if (members[position].home.empty()) groups.by_node[groups.members.back().node] = number;
      groups.by_node.try_emplace(groups.members.back().node, number);
      for (const PlanRank& rank : members[position].ranks) groups.by_rank[rank.rank.value] = number;
    }
  }
  for (auto it = job.versions.lower_bound({incarnation, Step{0}});
       it != job.versions.end() && it->first.incarnation == incarnation; ++it) {
    it->second.parity.resize(groups.members.size());
  }
}

/// Erases plans of incarnations that have no version any more. The last plan stays, since the next
/// one keeps its positions.
void State::PrunePlans(Job& job) {
  bool last = true;
  for (auto it = job.lineages.rbegin(); it != job.lineages.rend(); ++it) {
    LineageRecord& lineage = it->second;
    if (lineage.peers.empty() || std::exchange(last, false)) continue;
    auto version = job.versions.lower_bound({it->first, Step{0}});
    if (version != job.versions.end() && version->first.incarnation == it->first) continue;
    job.group_indexes.erase(it->first);
    lineage.peers.clear();
    effects_.emplace_back(PutLineage{lineage, LineageChange::kPlanned});
  }
}

/// Returns the group as it is sent to agents. With `version`, it shows which members have all their
/// shards of it, counting damaged replicas. Returns nothing when the record of the plan describes
/// no valid group.
std::optional<GroupPlan> State::GroupOf(const Job& job, Incarnation incarnation, uint32_t group,
                                        const VersionState* version) const {
  const PlannedGroup& planned = job.lineages.at(incarnation).peers[group];
  const GroupIndex& groups = job.group_indexes.at(incarnation);
  std::vector<PlanMember> members;
  for (uint32_t position = 0; position < planned.members.size(); ++position) {
    const uint32_t number = groups.firsts[group] + position;
    const Node& node = nodes_[groups.members[number].node];
    PlanMember member;
    member.node = node.name;
    if (!planned.members[position].home.empty()) member.planned = planned.members[position].node;
    if (node.attached) member.address = node.peer_address;
    member.number = number;
    member.ranks = planned.members[position].ranks;
    if (version != nullptr && !member.address.empty()) {
      member.has_data = HasData(job, *version, number, kAnyTier | kIncludeDamaged);
      member.has_parity = HasParity(job, *version, number, kAnyTier | kIncludeDamaged);
    }
    members.push_back(std::move(member));
  }
  auto plan = GroupPlan::Make(std::move(members), planned.parity);
  return plan ? std::optional(*std::move(plan)) : std::nullopt;
}

/// Schedules the job state for the members of the node's groups after the node was attached or
/// lost, or changed its address.
void State::SendGroupsOf(NodeIndex node) {
  for (auto& [name, job] : jobs_) {
    const GroupIndex* groups = job.groups_of(job.incarnation);
    if (groups == nullptr) continue;
    auto number = groups->by_node.find(node);
    if (number == groups->by_node.end()) continue;
    const uint32_t group = groups->members[number->second].group;
    for (uint32_t i = groups->firsts[group];
         i < groups->members.size() && groups->members[i].group == group; ++i) {
      job.job_state_to.insert(groups->members[i].node);
    }
  }
}

/// Returns the retention floor at tier peer: the newest version committed at peer, of which agents
/// free nothing until a newer one is committed there. If the current incarnation has no parity
/// groups, its first commit in memory replaces the floor, and the result is none.
VersionId State::PeerFloor(const Job& job) {
  const bool unprotected = job.lineage().peers.empty() && job.ranks_joined == job.lineage().world;
  if (unprotected && NewestCommitted(job, Tier::kMemory).incarnation == job.incarnation) return {};
  return NewestCommitted(job, Tier::kPeer);
}

}  // namespace holdfast::coord
