#include "coordinator/state/rehome.h"

#include <algorithm>
#include <tuple>

#include "coordinator/state/invariants.h"
#include "coordinator/state/survivability.h"

namespace holdfast::coord {
namespace {
// A node with less free disk space takes no other node's place.
constexpr uint32_t kFreePercentMin = 10;

/// Whether the member has its ranks' shards or its parity of a version on disk.
bool HasShardsOnDisk(const Job& job, Incarnation incarnation, uint32_t number) {
  constexpr uint32_t kDisk = TierBit(Tier::kDisk);
  for (auto it = job.versions.lower_bound({incarnation, Step{0}});
       it != job.versions.end() && it->first.incarnation == incarnation; ++it) {
    const VersionState& version = it->second;
    if (!version.committed_at(Tier::kDisk)) continue;
    if (HasData(job, version, number, kDisk) || HasParity(job, version, number, kDisk)) return true;
  }
  return false;
}

bool HasVersionOnDisk(const Job& job, Incarnation incarnation) {
  auto it = job.versions.lower_bound({incarnation, Step{0}});
  for (; it != job.versions.end() && it->first.incarnation == incarnation; ++it) {
    if (it->second.committed_at(Tier::kDisk)) return true;
  }
  return false;
}

/// Returns the slot bytes of all members that the node has replaced, so that further places can go
/// to other nodes.
uint64_t RehomedBytes(const ReadContext& context, NodeIndex node) {
  uint64_t bytes = 0;
  for (const auto& [name, job] : context.cluster.jobs) {
    for (const auto& [incarnation, lineage] : job.lineages) {
      for (const PlannedGroup& group : lineage.peers) {
        for (const PlannedMember& member : group.members) {
          if (member.home != context.cluster.nodes[node].name) continue;
          for (const PlanRank& rank : member.ranks) bytes += rank.slot_bytes;
        }
      }
    }
  }
  return bytes;
}

/// Returns the best attached node outside the group, or kNoNode if there is none. Preferred are, in
/// this order: a failure domain with fewer members in the group, the domain of the lost node, a
/// node without a place in the plan, more free disk space, and less data taken over from other
/// members.
NodeIndex ChooseHome(const ReadContext& context, const Job& job, Incarnation incarnation,
                     uint32_t number) {
  const GroupIndex& groups = job.group_indexes.at(incarnation);
  const uint32_t group = groups.members[number].group;
  const std::vector<PlannedMember>& members = job.lineages.at(incarnation).peers[group].members;
  const std::string& lost = MemberAt(job, incarnation, number).domain;
  NodeIndex best = kNoNode;
  std::tuple<size_t, bool, bool, int64_t, uint64_t, std::string> best_cost;
  for (NodeIndex index = 0; index < context.cluster.nodes.size(); ++index) {
    const Node& node = context.cluster.nodes[index];
    const bool in_group = std::any_of(groups.members.begin(), groups.members.end(),
                                      [&](const GroupIndex::Member& member) {
                                        return member.group == group && member.node == index;
                                      });
    if (!TakesShards(node) || node.peer_address.empty() || node.no_parity || in_group) continue;
    auto label = node.labels.find(context.options.peers.domain_label);
    const std::string domain = label == node.labels.end() ? "" : label->second;
    size_t same_domain = 0;
    for (uint32_t i = 0; i < members.size(); ++i) {
      const bool is_lost = groups.firsts[group] + i == number;
      if (!is_lost && !domain.empty() && members[i].domain == domain) ++same_domain;
    }
    // The order of preference; the name makes the choice deterministic.
    const auto cost = std::tuple(same_domain, domain != lost, groups.by_node.count(index) != 0,
                                 -static_cast<int64_t>(node.health.disk_free_percent),
                                 RehomedBytes(context, index), node.name);
    if (best != kNoNode && cost >= best_cost) continue;
    best = index;
    best_cost = cost;
  }
  return best;
}
}  // namespace

bool RunsOn(const Job& job, NodeIndex node) {
  return job.phase == JobPhase::kRunning &&
         std::ranges::find(job.rank_nodes, node) != job.rank_nodes.end();
}

bool TakesShards(const Node& node) {
  return node.attached && !node.drain.has_value() && !node.health.departing &&
         node.health.disk_free_percent >= kFreePercentMin;
}

NodeIndex FreeHome(const ReadContext& context, const Job& job, Incarnation incarnation,
                   uint32_t number) {
  return ChooseHome(context, job, incarnation, number);
}

void RehomeReturned(Context& context, Job& job, const std::string& node) {
  const bool returned = std::ranges::any_of(
      job.group_indexes, [&](const auto& entry) { return entry.second.replaced.contains(node); });
  if (returned) RehomeLost(context, job);
}

void RehomeLost(Context& context, Job& job) {
  for (auto& [incarnation, groups] : job.group_indexes) {
    LineageRecord& lineage = job.lineages.at(incarnation);
    if (!HasVersionOnDisk(job, incarnation)) continue;
    bool moved = false;
    for (uint32_t number = 0; number < groups.members.size(); ++number) {
      GroupIndex::Member& place = groups.members[number];
      PlannedMember& member = lineage.peers[place.group].members[place.position];
      NodeIndex home = place.node;
      const auto away_too_long = [&](NodeIndex index) {
        const Node& node = context.cluster.nodes[index];
        return !node.attached && context.at.now - node.lost_at >= context.options.rehome_after;
      };
      const auto is_drained = [&, incarnation = incarnation](NodeIndex index) {
        return context.cluster.nodes[index].drain.has_value() &&
               (incarnation != job.incarnation || !RunsOn(job, index));
      };
      auto original = context.cluster.node_names.find(member.node);
      const bool returned = !member.home.empty() && original != context.cluster.node_names.end() &&
                            context.cluster.nodes[original->second].attached &&
                            !context.cluster.nodes[original->second].drain.has_value();
      // Only of an attached node is it known which shards it has.
      const bool empty =
          context.cluster.nodes[home].attached && !HasShardsOnDisk(job, incarnation, number);
      if (returned && (empty || away_too_long(home))) home = original->second;
      const bool drained = is_drained(home);
      if (drained || away_too_long(home)) home = ChooseHome(context, job, incarnation, number);
      if (home == kNoNode || home == place.node) continue;
      RecordFinding(
          context, job.name, home,
          UnavailableError("takes the place of node " + context.cluster.nodes[place.node].name +
                           " in a parity group, which is " + (drained ? "drained" : "away")));
      auto domain = context.cluster.nodes[home].labels.find(context.options.peers.domain_label);
      member.domain = domain == context.cluster.nodes[home].labels.end() ? "" : domain->second;
      member.home =
          context.cluster.nodes[home].name == member.node ? "" : context.cluster.nodes[home].name;
      place.node = home;
      moved = true;
    }
    if (!moved) continue;
    groups.by_node.clear();
    groups.replaced.clear();
    for (uint32_t number = 0; number < groups.members.size(); ++number) {
      const GroupIndex::Member& member = groups.members[number];
      const PlannedMember& planned = lineage.peers[member.group].members[member.position];
      if (planned.home.empty()) groups.by_node[member.node] = number;
      if (!planned.home.empty()) groups.replaced.insert(planned.node);
      groups.by_node.try_emplace(member.node, number);
    }
    for (auto it = job.versions.lower_bound({incarnation, Step{0}});
         it != job.versions.end() && it->first.incarnation == incarnation; ++it) {
      it->second.fully_available.reset();
    }
    CheckParityPlan(context, lineage);
    CheckGroupIndex(context, lineage, groups);
    context.effects.emplace_back(PutLineage{lineage, LineageChange::kPlanned});
    if (incarnation == job.incarnation) job.job_state_changed = true;
  }
}

}  // namespace holdfast::coord
