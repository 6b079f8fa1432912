#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/state/records.h"

// Places nodes in parity groups.

namespace holdfast::coord {

struct GroupOptions {
  uint32_t group_nodes = 8;  // maximum group size, 2 to kCodeSegmentsMax
  /// Nodes of a group that may be lost, up to kCodeParityMax. 0: two if there are at least
  /// eight nodes and `group_nodes` is at least eight, else one.
  uint32_t parity = 0;
};

/// Partitions `nodes` (with unique names) into as few parity groups as `group_nodes` allows. Group
/// sizes differ by at most one and are never below two. Failure domains are spread as far as
/// possible: no group gets more than its even share of a domain. A node without a domain fails
/// independently of all others.
///
/// `previous` is the plan of an earlier incarnation, or empty. If its groups have the same sizes,
/// a node that was a member and is still in the same domain keeps its position, and new nodes fill
/// the free positions. Otherwise the plan depends only on the set of nodes, not on their order.
///
/// Returns an empty plan for fewer than two nodes. A group of fewer than four nodes survives the
/// loss of one node under any options. Pure.
PeerPlan PlaceInGroups(std::vector<PlannedMember> nodes, const PeerPlan& previous,
                       const GroupOptions& options);

}  // namespace holdfast::coord
