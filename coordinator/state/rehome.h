#pragma once

#include "coordinator/state/cluster.h"

// Rehoming: another node takes the place of a permanently lost node in the parity groups, so that
// its shards of the versions on disk can be rebuilt there.
//
// A place is given away when its node has been away for `rehome_after`, and only in plans of
// incarnations that have versions on disk. A node that returns gets its place back if its
// replacement has no shards yet or has been away for `rehome_after` too.
//
// A drained node gives its places away at once, and takes none. It keeps the places of its running
// ranks, since their versions count only there.

namespace holdfast::coord {

/// Whether ranks of the current incarnation run on the node.
bool RunsOn(const Job& job, NodeIndex node);

/// Whether the node may take shards of other nodes: it stays, and its disks have room.
bool TakesShards(const Node& node);

/// Applies the rule above to all plans of the job.
void RehomeLost(Context& context, Job& job);

/// The same after `node` has attached, if another node has one of its places.
void RehomeReturned(Context& context, Job& job, const std::string& node);

/// Returns a node that could take the place of this member of the plan, or kNoNode.
NodeIndex FreeHome(const ReadContext& context, const Job& job, Incarnation incarnation,
                   uint32_t number);

}  // namespace holdfast::coord
