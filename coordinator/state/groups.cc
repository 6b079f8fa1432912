#include "coordinator/state/groups.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace holdfast::coord {
namespace {
constexpr uint32_t kFullGroupNodes = 8;  // from this size on, a second parity is worth its memory
constexpr uint32_t kSmallGroupNodes = 4;

uint32_t ParityOf(size_t members, size_t nodes, const GroupOptions& options) {
  if (members < kSmallGroupNodes) return 1;
  uint32_t wanted = options.parity;
  if (wanted == 0) {
    wanted = options.group_nodes >= kFullGroupNodes && nodes >= kFullGroupNodes ? 2 : 1;
  }
  return std::min(wanted, static_cast<uint32_t>(members) - 1);
}

/// Returns groups with an empty position for each future member.
PeerPlan FreePositions(size_t nodes, const GroupOptions& options) {
  const size_t wanted = (nodes + options.group_nodes - 1) / options.group_nodes;
  const size_t groups = std::clamp<size_t>(wanted, 1, nodes / 2);
  PeerPlan plan(groups);
  for (size_t i = 0; i < groups; ++i) {
    plan[i].members.resize(nodes / groups + (i < nodes % groups ? 1 : 0));
    plan[i].parity = ParityOf(plan[i].members.size(), nodes, options);
  }
  return plan;
}

bool SameSizes(const PeerPlan& a, const PeerPlan& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const PlannedGroup& x, const PlannedGroup& y) {
                      return x.members.size() == y.members.size();
                    });
}

/// Places nodes at the positions that they have in `previous`. The other nodes stay in `nodes`.
void KeepPreviousPositions(const PeerPlan& previous, std::vector<PlannedMember>& nodes,
                           PeerPlan& plan) {
  std::map<std::string, std::pair<size_t, size_t>> positions;
  for (size_t g = 0; g < previous.size(); ++g) {
    for (size_t i = 0; i < previous[g].members.size(); ++i) {
      positions[previous[g].members[i].place()] = {g, i};
    }
  }
  std::vector<PlannedMember> newcomers;
  for (PlannedMember& node : nodes) {
    auto position = positions.find(node.node);
    const bool stays =
        position != positions.end() &&
        previous[position->second.first].members[position->second.second].domain == node.domain;
    if (stays) {
      plan[position->second.first].members[position->second.second] = std::move(node);
    } else {
      newcomers.push_back(std::move(node));
    }
  }
  nodes = std::move(newcomers);
}

/// Assigns the nodes to the groups in rotation, one domain after another. This spreads each domain,
/// and all nodes, as evenly as possible.
void DealByDomain(std::vector<PlannedMember> nodes, PeerPlan& plan) {
  // Nodes without a domain come last and fill up the groups.
  std::sort(nodes.begin(), nodes.end(), [](const PlannedMember& a, const PlannedMember& b) {
    return std::tuple(a.domain.empty(), a.domain, a.node) <
           std::tuple(b.domain.empty(), b.domain, b.node);
  });
  for (size_t i = 0; i < nodes.size(); ++i) {
    plan[i % plan.size()].members[i / plan.size()] = std::move(nodes[i]);
  }
}

/// Places each new node at a free position in the group with the fewest nodes of its domain.
void FillFreePositions(std::vector<PlannedMember> newcomers, PeerPlan& plan) {
  std::sort(newcomers.begin(), newcomers.end(),
            [](const PlannedMember& a, const PlannedMember& b) { return a.node < b.node; });
  for (PlannedMember& newcomer : newcomers) {
    PlannedMember* best = nullptr;
    size_t best_same_domain = 0;
    for (PlannedGroup& group : plan) {
      auto free = std::find_if(group.members.begin(), group.members.end(),
                               [](const PlannedMember& member) { return member.node.empty(); });
      if (free == group.members.end()) continue;
      const size_t same_domain = static_cast<size_t>(std::count_if(
          group.members.begin(), group.members.end(), [&](const PlannedMember& member) {
            return !newcomer.domain.empty() && member.domain == newcomer.domain;
          }));
      if (best != nullptr && same_domain >= best_same_domain) continue;
      best = &*free;
      best_same_domain = same_domain;
    }
    *best = std::move(newcomer);
  }
}
}  // namespace

PeerPlan PlaceInGroups(std::vector<PlannedMember> nodes, const PeerPlan& previous,
                       const GroupOptions& options) {
  if (nodes.size() < 2) return {};
  const size_t count = nodes.size();
  PeerPlan plan = FreePositions(count, options);
  if (SameSizes(plan, previous)) KeepPreviousPositions(previous, nodes, plan);
  if (nodes.size() == count) {
    DealByDomain(std::move(nodes), plan);
  } else {
    FillFreePositions(std::move(nodes), plan);
  }
  return plan;
}

}  // namespace holdfast::coord
