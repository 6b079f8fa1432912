#include "coordinator/state/parity_plan.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "coordinator/state/groups.h"
#include "coordinator/state/invariants.h"
#include "coordinator/state/survivability.h"

namespace holdfast::coord {

std::string WhyNoPeers(const ReadContext& context, const Job& job) {
  if (!job.lineage().peers.empty()) return "";
  if (!context.options.peers.enabled) return "peers are disabled";
  const uint32_t world = job.lineage().world;
  if (job.ranks_joined != world) {
    return fmt::format("{} of {} ranks have joined", job.ranks_joined, world);
  }
  std::map<NodeIndex, uint32_t> nodes;
  for (uint32_t rank = 0; rank < world; ++rank) {
    const Node& node = context.cluster.nodes[job.rank_nodes[rank]];
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
    if (node.no_parity) return fmt::format("node {} has peers.enabled = false", node.name);
    if (++nodes[job.rank_nodes[rank]] > kMemberRanksMax) {
      return fmt::format("node {} has more than {} ranks", node.name, kMemberRanksMax);
    }
  }
  return nodes.size() < 2 ? "all ranks are on one node" : "";
}

void PlanPeers(Context& context, Job& job) {
  if (!job.lineage().peers.empty() || !WhyNoPeers(context, job).empty()) return;
  std::map<NodeIndex, PlannedMember> members;
  for (uint32_t rank = 0; rank < job.lineage().world; ++rank) {
    PlannedMember& member = members[job.rank_nodes[rank]];
    member.ranks.push_back({Rank{rank}, job.slot_bytes[rank]});
  }
  std::vector<PlannedMember> nodes;
  for (auto& [index, member] : members) {
    const Node& node = context.cluster.nodes[index];
    member.node = node.name;
    auto domain = node.labels.find(context.options.peers.domain_label);
    if (domain != node.labels.end()) member.domain = domain->second;
    nodes.push_back(std::move(member));
  }
  PeerPlan previous;
  for (const auto& [incarnation, lineage] : job.lineages) {
    if (!lineage.peers.empty()) previous = lineage.peers;
  }
  LineageRecord& lineage = job.lineage();
  lineage.peers = PlaceInGroups(std::move(nodes), previous, context.options.peers.groups);
  CheckParityPlan(context, lineage);
  if (previous.empty()) CheckDomains(context, lineage);
  IndexGroups(context, job, job.incarnation);
  context.effects.emplace_back(PutLineage{lineage, LineageChange::kPlanned});
  job.changed = true;
  job.job_state_changed = true;
}

void IndexGroups(Context& context, Job& job, Incarnation incarnation) {
  GroupIndex& groups = job.group_indexes[incarnation];
  const LineageRecord& lineage = job.lineages.at(incarnation);
  groups.by_rank.resize(lineage.world);
  for (uint32_t group = 0; group < lineage.peers.size(); ++group) {
    groups.firsts.push_back(static_cast<uint32_t>(groups.members.size()));
    const std::vector<PlannedMember>& members = lineage.peers[group].members;
    for (uint32_t position = 0; position < members.size(); ++position) {
      const uint32_t number = static_cast<uint32_t>(groups.members.size());
      groups.members.push_back({group, position, InternNode(context, members[position].place())});
      // A node may also have another member's place: the lookup by node returns its own place.
      if (members[position].home.empty()) groups.by_node[groups.members.back().node] = number;
      if (!members[position].home.empty()) groups.replaced.insert(members[position].node);
      groups.by_node.try_emplace(groups.members.back().node, number);
      for (const PlanRank& rank : members[position].ranks) groups.by_rank[rank.rank.value] = number;
    }
  }
  CheckGroupIndex(context, lineage, groups);
  for (auto it = job.versions.lower_bound({incarnation, Step{0}});
       it != job.versions.end() && it->first.incarnation == incarnation; ++it) {
    it->second.parity.resize(groups.members.size());
  }
}

void PrunePlans(Context& context, Job& job) {
  bool last = true;
  for (auto it = job.lineages.rbegin(); it != job.lineages.rend(); ++it) {
    LineageRecord& lineage = it->second;
    if (lineage.peers.empty() || std::exchange(last, false)) continue;
    auto version = job.versions.lower_bound({it->first, Step{0}});
    if (version != job.versions.end() && version->first.incarnation == it->first) continue;
    job.group_indexes.erase(it->first);
    lineage.peers.clear();
    context.effects.emplace_back(PutLineage{lineage, LineageChange::kPlanned});
  }
}

std::optional<GroupPlan> GroupOf(const ReadContext& context, const Job& job,
                                 Incarnation incarnation, uint32_t group,
                                 const VersionState* version) {
  const PlannedGroup& planned = job.lineages.at(incarnation).peers[group];
  const GroupIndex& groups = job.group_indexes.at(incarnation);
  std::vector<PlanMember> members;
  for (uint32_t position = 0; position < planned.members.size(); ++position) {
    const uint32_t number = groups.firsts[group] + position;
    const Node& node = context.cluster.nodes[groups.members[number].node];
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
  HOLDFAST_INVARIANT(*context.options.invariants, plan.has_value(), Kv("job", job.name),
                     Kv("group", group), Kv("why", plan ? "" : plan.error().message()));
  return plan ? std::optional(*std::move(plan)) : std::nullopt;
}

void SendGroupsOf(Context& context, NodeIndex node) {
  for (auto& [name, job] : context.cluster.jobs) {
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

}  // namespace holdfast::coord
