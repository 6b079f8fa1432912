#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/state/records.h"

// Which nodes keep parity for each other.

namespace holdfast::coord {

struct GroupOptions {
  uint32_t group_nodes = 8;  // most nodes of a group, 2 to kPeerGroupNodesMax
  /// Nodes of a group that may be lost, up to kPeerGroupParityMax. 0: two where there are 8 nodes
  /// and a group may have them, else one.
  uint32_t parity = 0;
};

/// Partitions `nodes` (names all different) into parity groups: as few as `group_nodes` allows, of
/// sizes that differ by one at most and are never below 2. Members of a group come from different
/// domains as far as possible: no group gets more than its even share of any domain. A node without
/// a domain shares its fate with no other.
///
/// A node that sits in `previous` (the plan of an earlier incarnation, or empty) in the same domain
/// keeps its seat if the groups have the same sizes as then; newcomers take the seats of those that
/// left. Otherwise the plan follows from the set of nodes alone, in whatever order they come.
///
/// Fewer than two nodes cannot protect each other: an empty plan. A group of fewer than four
/// survives the loss of one. Pure.
PeerPlan PlaceInGroups(std::vector<PlannedMember> nodes, const PeerPlan& previous,
                       const GroupOptions& options);

}  // namespace holdfast::coord
