#include <algorithm>
#include <tuple>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// A node that is gone for good: another one takes its place in the parity groups, so that what it
// had of the versions on disk has somewhere to come back to.

namespace holdfast::coord {
namespace {
// A node with less free space is given no shards of others.
constexpr uint32_t kFreePercentMin = 10;

/// The member has something of a version that is on disk.
bool HasAny(const Job& job, Incarnation incarnation, uint32_t number) {
  constexpr uint32_t kDisk = TierBit(Tier::kDisk);
  for (auto it = job.versions.lower_bound({incarnation, Step{0}});
       it != job.versions.end() && it->first.incarnation == incarnation; ++it) {
    const VersionState& version = it->second;
    if (!version.committed_at(Tier::kDisk)) continue;
    if (HasData(job, version, number, kDisk) || HasParity(job, version, number, kDisk)) return true;
  }
  return false;
}

bool AnyOnDisk(const Job& job, Incarnation incarnation) {
  auto it = job.versions.lower_bound({incarnation, Step{0}});
  for (; it != job.versions.end() && it->first.incarnation == incarnation; ++it) {
    if (it->second.committed_at(Tier::kDisk)) return true;
  }
  return false;
}
}  // namespace

/// Gives the place of each node that is away for too long to another one, and back when it returns
/// before that one has got anything.
void State::RehomeLost(Job& job) {
  for (auto& [incarnation, seats] : job.seats) {
    LineageRecord& lineage = job.lineages.at(incarnation);
    if (!AnyOnDisk(job, incarnation)) continue;
    bool moved = false;
    for (uint32_t number = 0; number < seats.seats.size(); ++number) {
      PeerSeats::Seat& seat = seats.seats[number];
      PlannedMember& member = lineage.peers[seat.group].members[seat.position];
      NodeIndex home = seat.node;
      const auto is_gone = [&](NodeIndex index) {
        const Node& node = nodes_[index];
        return !node.attached && at_.now - node.lost_at >= options_.rehome_after;
      };
      auto original = node_names_.find(member.node);
      const bool returned = !member.home.empty() && original != node_names_.end() &&
                            nodes_[original->second].attached;
      // What a node that is not attached has got is not known.
      const bool empty = nodes_[home].attached && !HasAny(job, incarnation, number);
      if (returned && (empty || is_gone(home))) home = original->second;
      if (is_gone(home)) home = ChooseHome(job, incarnation, number);
      if (home == kNoNode || home == seat.node) continue;
      Find(job.name, home,
           UnavailableError("takes the place of node " + nodes_[seat.node].name +
                            " in a parity group, which is away"));
      auto domain = nodes_[home].labels.find(options_.peers.domain_label);
      member.domain = domain == nodes_[home].labels.end() ? "" : domain->second;
      member.home = nodes_[home].name == member.node ? "" : nodes_[home].name;
      seat.node = home;
      moved = true;
    }
    if (!moved) continue;
    seats.by_node.clear();
    for (uint32_t number = 0; number < seats.seats.size(); ++number) {
      const PeerSeats::Seat& seat = seats.seats[number];
      const bool own = lineage.peers[seat.group].members[seat.position].home.empty();
      if (own) seats.by_node[seat.node] = number;
      seats.by_node.try_emplace(seat.node, number);
    }
    for (auto it = job.versions.lower_bound({incarnation, Step{0}});
         it != job.versions.end() && it->first.incarnation == incarnation; ++it) {
      it->second.whole.reset();
    }
    effects_.emplace_back(PutLineage{lineage, LineageChange::kPlanned});
    if (incarnation == job.incarnation) job.word_changed = true;
  }
}

/// A node outside the group: of a failure domain that the group has least of, rather the lost
/// node's own, rather one that has no place in the plan, rather one with more room.
NodeIndex State::ChooseHome(const Job& job, Incarnation incarnation, uint32_t number) const {
  const PeerSeats& seats = job.seats.at(incarnation);
  const uint32_t group = seats.seats[number].group;
  const std::vector<PlannedMember>& members = job.lineages.at(incarnation).peers[group].members;
  const std::string& lost = MemberAt(job, incarnation, number).domain;
  NodeIndex best = kNoNode;
  std::tuple<size_t, bool, bool, int64_t, uint64_t, std::string> best_cost;
  for (NodeIndex index = 0; index < nodes_.size(); ++index) {
    const Node& node = nodes_[index];
    const bool in_group =
        std::any_of(seats.seats.begin(), seats.seats.end(), [&](const PeerSeats::Seat& seat) {
          return seat.group == group && seat.node == index;
        });
    if (!node.attached || node.peer_address.empty() || in_group ||
        node.health.disk_free_percent < kFreePercentMin) {
      continue;
    }
    auto label = node.labels.find(options_.peers.domain_label);
    const std::string domain = label == node.labels.end() ? "" : label->second;
    size_t kin = 0;
    for (uint32_t i = 0; i < members.size(); ++i) {
      const bool is_lost = seats.firsts[group] + i == number;
      if (!is_lost && !domain.empty() && members[i].domain == domain) ++kin;
    }
    const auto cost = std::tuple(kin, domain != lost, seats.by_node.count(index) != 0,
                                 -static_cast<int64_t>(node.health.disk_free_percent),
                                 BytesToCome(index), node.name);
    if (best != kNoNode && cost >= best_cost) continue;
    best = index;
    best_cost = cost;
  }
  return best;
}

/// Places that the node has already taken for others, so that the next goes elsewhere.
uint64_t State::BytesToCome(NodeIndex node) const {
  uint64_t bytes = 0;
  for (const auto& [name, job] : jobs_) {
    for (const auto& [incarnation, lineage] : job.lineages) {
      for (const PlannedGroup& group : lineage.peers) {
        for (const PlannedMember& member : group.members) {
          if (member.home != nodes_[node].name) continue;
          for (const PeerRank& rank : member.ranks) bytes += rank.slot_bytes;
        }
      }
    }
  }
  return bytes;
}

}  // namespace holdfast::coord
