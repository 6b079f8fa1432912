#include "coordinator/state/groups.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace holdfast::coord {
namespace {
constexpr uint32_t kFullGroupNodes = 8;  // from here on two parities are worth their memory
constexpr uint32_t kSmallGroupNodes = 4;

uint32_t ParityOf(size_t members, size_t nodes, const GroupOptions& options) {
  if (members < kSmallGroupNodes) return 1;
  uint32_t wanted = options.parity;
  if (wanted == 0) {
    wanted = options.group_nodes >= kFullGroupNodes && nodes >= kFullGroupNodes ? 2 : 1;
  }
  return std::min(wanted, static_cast<uint32_t>(members) - 1);
}

/// Groups with as many empty seats as they will have members.
PeerPlan EmptySeats(size_t nodes, const GroupOptions& options) {
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

/// Seats those who sat there before; the others stay in `nodes`.
void SeatAsBefore(const PeerPlan& previous, std::vector<PlannedMember>& nodes, PeerPlan& plan) {
  std::map<std::string, std::pair<size_t, size_t>> seats;
  for (size_t g = 0; g < previous.size(); ++g) {
    for (size_t i = 0; i < previous[g].members.size(); ++i) {
      seats[previous[g].members[i].place()] = {g, i};
    }
  }
  std::vector<PlannedMember> newcomers;
  for (PlannedMember& node : nodes) {
    auto seat = seats.find(node.node);
    const bool stays =
        seat != seats.end() &&
        previous[seat->second.first].members[seat->second.second].domain == node.domain;
    if (stays) {
      plan[seat->second.first].members[seat->second.second] = std::move(node);
    } else {
      newcomers.push_back(std::move(node));
    }
  }
  nodes = std::move(newcomers);
}

/// Deals the nodes out domain after domain, like cards: the members of each domain are spread as
/// evenly as they can be, and so are all.
void Deal(std::vector<PlannedMember> nodes, PeerPlan& plan) {
  // Those without a domain come last and fill up.
  std::sort(nodes.begin(), nodes.end(), [](const PlannedMember& a, const PlannedMember& b) {
    return std::tuple(a.domain.empty(), a.domain, a.node) <
           std::tuple(b.domain.empty(), b.domain, b.node);
  });
  for (size_t i = 0; i < nodes.size(); ++i) {
    plan[i % plan.size()].members[i / plan.size()] = std::move(nodes[i]);
  }
}

/// Gives each newcomer the free seat whose group has the fewest of its domain.
void FillFreeSeats(std::vector<PlannedMember> newcomers, PeerPlan& plan) {
  std::sort(newcomers.begin(), newcomers.end(),
            [](const PlannedMember& a, const PlannedMember& b) { return a.node < b.node; });
  for (PlannedMember& newcomer : newcomers) {
    PlannedMember* best = nullptr;
    size_t best_kin = 0;
    for (PlannedGroup& group : plan) {
      auto free = std::find_if(group.members.begin(), group.members.end(),
                               [](const PlannedMember& member) { return member.node.empty(); });
      if (free == group.members.end()) continue;
      const size_t kin = static_cast<size_t>(std::count_if(
          group.members.begin(), group.members.end(), [&](const PlannedMember& member) {
            return !newcomer.domain.empty() && member.domain == newcomer.domain;
          }));
      if (best != nullptr && kin >= best_kin) continue;
      best = &*free;
      best_kin = kin;
    }
    *best = std::move(newcomer);
  }
}
}  // namespace

PeerPlan PlaceInGroups(std::vector<PlannedMember> nodes, const PeerPlan& previous,
                       const GroupOptions& options) {
  if (nodes.size() < 2) return {};
  const size_t count = nodes.size();
  PeerPlan plan = EmptySeats(count, options);
  if (SameSizes(plan, previous)) SeatAsBefore(previous, nodes, plan);
  if (nodes.size() == count) {
    Deal(std::move(nodes), plan);
  } else {
    FillFreeSeats(std::move(nodes), plan);
  }
  return plan;
}

}  // namespace holdfast::coord
