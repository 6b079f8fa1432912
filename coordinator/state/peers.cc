#include "coordinator/state/peers.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/groups.h"
#include "coordinator/state/state.h"

// Parity groups: when they are planned, and what they mean for a version.

namespace holdfast::coord {
namespace {
bool IsHeld(const VersionState& version, Rank rank, const RankShard& shard, NodeIndex node,
            uint32_t tiers) {
  const auto counts = [&](const Copy& copy) {
    return copy.node == node && (TierBit(copy.tier) & tiers) != 0;
  };
  if (std::any_of(shard.copies.begin(), shard.copies.end(), counts)) return true;
  return (tiers & kDamagedToo) != 0 &&
         std::any_of(version.damaged.begin(), version.damaged.end(), [&](const DamagedCopy& bad) {
           return bad.readable && bad.rank == rank && counts(bad.copy);
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
  const PeerSeats* seats = job.seats_of(version.id.incarnation);
  if (seats == nullptr) return false;
  std::vector<bool> survives(seats->firsts.size());
  for (uint32_t group = 0; group < survives.size(); ++group) {
    survives[group] = Survives(job, version, group, tiers);
  }
  for (uint32_t rank = 0; rank < version.world; ++rank) {
    const bool held = !version.ranks[rank].copies.empty();
    if (!held && !survives[seats->seats[seats->by_rank[rank]].group]) return false;
  }
  return true;
}
}  // namespace

const PlannedMember& MemberAt(const Job& job, Incarnation incarnation, uint32_t number) {
  const PeerSeats::Seat& seat = job.seats.at(incarnation).seats[number];
  return job.lineages.at(incarnation).peers[seat.group].members[seat.position];
}

bool HasData(const Job& job, const VersionState& version, uint32_t number, uint32_t tiers) {
  const NodeIndex node = job.seats.at(version.id.incarnation).seats[number].node;
  const std::vector<PeerRank>& ranks = MemberAt(job, version.id.incarnation, number).ranks;
  return std::all_of(ranks.begin(), ranks.end(), [&](const PeerRank& rank) {
    return IsHeld(version, rank.rank, version.ranks[rank.rank.value], node, tiers);
  });
}

bool HasParity(const Job& job, const VersionState& version, uint32_t number, uint32_t tiers) {
  const NodeIndex node = job.seats.at(version.id.incarnation).seats[number].node;
  return IsHeld(version, ParityRank(number), version.parity[number], node, tiers);
}

uint32_t Erasures(const Job& job, const VersionState& version, uint32_t group, uint32_t tiers) {
  const uint32_t first = job.seats.at(version.id.incarnation).firsts[group];
  const PlannedGroup& planned = job.lineages.at(version.id.incarnation).peers[group];
  const auto n = static_cast<uint32_t>(planned.members.size());
  std::vector<bool> no_data(n);
  std::vector<bool> no_parity(n);
  for (uint32_t i = 0; i < n; ++i) {
    no_data[i] = !HasData(job, version, first + i, tiers);
    no_parity[i] = !HasParity(job, version, first + i, tiers);
  }
  uint32_t most = 0;
  for (uint32_t stripe = 0; stripe < n; ++stripe) {
    uint32_t lost = 0;
    for (uint32_t i = 0; i < n; ++i) {
      const bool keeps_parity = (i + n - stripe) % n < planned.parity;
      if (keeps_parity ? no_parity[i] : no_data[i]) ++lost;
    }
    most = std::max(most, lost);
  }
  return most;
}

bool MayDecode(const VersionState& version) {
  return version.committed_at(Tier::kPeer) || version.committed_at(Tier::kDisk);
}

bool IsCompleteAtPeer(const Job& job, const VersionState& version) {
  const PeerSeats* seats = job.seats_of(version.id.incarnation);
  if (seats == nullptr) return false;
  const auto complete = [&](Tier tier) {
    if (!version.committed_at(tier)) return false;
    if (version.parity_held_at(tier) != seats->seats.size()) return false;
    if (version.held_at(tier) != version.world) return false;
    for (uint32_t number = 0; number < seats->seats.size(); ++number) {
      if (!HasData(job, version, number, TierBit(tier))) return false;
      if (!HasParity(job, version, number, TierBit(tier))) return false;
    }
    return true;
  };
  return complete(Tier::kMemory) || complete(Tier::kDisk);
}

bool CanDecode(const Job& job, const VersionState& version, Rank rank, uint32_t tiers) {
  const PeerSeats* seats = job.seats_of(version.id.incarnation);
  if (seats == nullptr || !MayDecode(version)) return false;
  return Survives(job, version, seats->seats[seats->by_rank[rank.value]].group, tiers);
}

bool IsAvailable(const Job& job, const VersionState& version, Rank rank, uint32_t tiers) {
  return !version.ranks[rank.value].copies.empty() || CanDecode(job, version, rank, tiers);
}

bool IsWhole(const Job& job, const VersionState& version) {
  if (version.held_any == version.world) return true;
  if (!MayDecode(version)) return false;
  // Asked for every event of a restore, and as large as the world.
  if (!version.whole) version.whole = EveryRankIsAvailable(job, version, kAnyTier);
  return *version.whole;
}

bool MayBeWhole(const Job& job, const VersionState& version) {
  if (IsWhole(job, version)) return true;
  if (version.damaged.empty() || !MayDecode(version)) return false;
  return EveryRankIsAvailable(job, version, kAnyTier | kDamagedToo);
}

std::optional<uint32_t> PeerMargin(const Job& job, const VersionState& version, uint32_t tiers) {
  const PeerSeats* seats = job.seats_of(version.id.incarnation);
  if (seats == nullptr) return std::nullopt;
  uint32_t least = kPeerGroupParityMax;
  for (uint32_t group = 0; group < seats->firsts.size(); ++group) {
    const uint32_t parity = ParityOf(job, version.id.incarnation, group);
    const uint32_t erasures = Erasures(job, version, group, tiers);
    if (erasures > parity) return std::nullopt;
    least = std::min(least, parity - erasures);
  }
  return least;
}

bool IsOnItsWayToPeer(const Job& job, const VersionState& version) {
  return version.id.incarnation == job.incarnation && job.seats_of(job.incarnation) != nullptr &&
         version.id.step >= job.peer_target.step() &&
         ((version.tiers | version.failed_tiers) & TierBit(Tier::kPeer)) == 0;
}

bool ParityAwaitsMemory(const Job& job) {
  const size_t members = job.seats.at(job.incarnation).seats.size();
  auto it = job.versions.lower_bound({job.incarnation, job.peer_target.step()});
  return std::any_of(it, job.versions.end(), [&](const auto& entry) {
    const VersionState& version = entry.second;
    return version.phase == Phase::kPending && IsOnItsWayToPeer(job, version) &&
           version.parity_held_at(Tier::kMemory) == members;
  });
}

/// Empty when there is a plan or one can be made.
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
      return fmt::format("rank {}'s agent on node {} did not say how large its slots are", rank,
                         node.name);
    }
    if (job.slot_bytes[rank] % kSlotBytesAlign != 0 || job.slot_bytes[rank] > kSlotBytesMax) {
      return fmt::format("rank {} has slots of {} bytes", rank, job.slot_bytes[rank]);
    }
    if (node.peer_address.empty()) {
      return fmt::format("node {} has no listener for its peers", node.name);
    }
    if (++nodes[job.rank_nodes[rank]] > kPeerRanksMax) {
      return fmt::format("node {} has more than {} ranks", node.name, kPeerRanksMax);
    }
  }
  return nodes.size() < 2 ? "all ranks are on one node" : "";
}

/// Once all ranks have joined: who keeps parity with whom, for the rest of the incarnation.
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
  SeatPeers(job, job.incarnation);
  effects_.emplace_back(PutLineage{lineage, LineageChange::kPlanned});
  job.changed = true;
  job.word_changed = true;
}

/// Makes the plan of an incarnation ready to be looked up.
void State::SeatPeers(Job& job, Incarnation incarnation) {
  PeerSeats& seats = job.seats[incarnation];
  const LineageRecord& lineage = job.lineages.at(incarnation);
  seats.by_rank.resize(lineage.world);
  for (uint32_t group = 0; group < lineage.peers.size(); ++group) {
    seats.firsts.push_back(static_cast<uint32_t>(seats.seats.size()));
    const std::vector<PlannedMember>& members = lineage.peers[group].members;
    for (uint32_t position = 0; position < members.size(); ++position) {
      const uint32_t number = static_cast<uint32_t>(seats.seats.size());
      seats.seats.push_back({group, position, Intern(members[position].place())});
      // Who took another's place beside its own is looked up by its own.
      if (members[position].home.empty()) seats.by_node[seats.seats.back().node] = number;
      seats.by_node.try_emplace(seats.seats.back().node, number);
      for (const PeerRank& rank : members[position].ranks) seats.by_rank[rank.rank.value] = number;
    }
  }
  for (auto it = job.versions.lower_bound({incarnation, Step{0}});
       it != job.versions.end() && it->first.incarnation == incarnation; ++it) {
    it->second.parity.resize(seats.seats.size());
  }
}

/// A plan is kept as long as there is a version of its incarnation, and the last one because the
/// next keeps its seats.
void State::ForgetPlans(Job& job) {
  bool last = true;
  for (auto it = job.lineages.rbegin(); it != job.lineages.rend(); ++it) {
    LineageRecord& lineage = it->second;
    if (lineage.peers.empty() || std::exchange(last, false)) continue;
    auto version = job.versions.lower_bound({it->first, Step{0}});
    if (version != job.versions.end() && version->first.incarnation == it->first) continue;
    job.seats.erase(it->first);
    lineage.peers.clear();
    effects_.emplace_back(PutLineage{lineage, LineageChange::kPlanned});
  }
}

/// The group as agents get it; with `version`, who has all its shards of it, some maybe damaged in
/// places.
PeerGroup State::GroupOf(const Job& job, Incarnation incarnation, uint32_t group,
                         const VersionState* version) const {
  const PlannedGroup& planned = job.lineages.at(incarnation).peers[group];
  const PeerSeats& seats = job.seats.at(incarnation);
  PeerGroup result;
  result.parity = planned.parity;
  for (uint32_t position = 0; position < planned.members.size(); ++position) {
    const uint32_t number = seats.firsts[group] + position;
    const Node& node = nodes_[seats.seats[number].node];
    PeerMember member;
    member.node = node.name;
    if (!planned.members[position].home.empty()) member.planned = planned.members[position].node;
    if (node.attached) member.address = node.peer_address;
    member.number = number;
    member.ranks = planned.members[position].ranks;
    if (version != nullptr && !member.address.empty()) {
      member.has_data = HasData(job, *version, number, kAnyTier | kDamagedToo);
      member.has_parity = HasParity(job, *version, number, kAnyTier | kDamagedToo);
    }
    result.members.push_back(std::move(member));
  }
  return result;
}

/// The node came, went or changed its address: the members of its groups hear of it.
void State::TellGroupsOf(NodeIndex node) {
  for (auto& [name, job] : jobs_) {
    const PeerSeats* seats = job.seats_of(job.incarnation);
    if (seats == nullptr) continue;
    auto number = seats->by_node.find(node);
    if (number == seats->by_node.end()) continue;
    const uint32_t group = seats->seats[number->second].group;
    for (uint32_t i = seats->firsts[group];
         i < seats->seats.size() && seats->seats[i].group == group; ++i) {
      job.word_to.insert(seats->seats[i].node);
    }
  }
}

/// The newest version that is committed at peer, as long as another can replace it: agents free
/// nothing of it before. An incarnation without groups is only as safe as memory makes it, and what
/// it commits there replaces what an earlier one had at peer.
VersionId State::PeerFloor(const Job& job) {
  const bool unprotected = job.lineage().peers.empty() && job.ranks_joined == job.lineage().world;
  if (unprotected && NewestCommitted(job, Tier::kMemory).incarnation == job.incarnation) return {};
  return NewestCommitted(job, Tier::kPeer);
}

}  // namespace holdfast::coord
