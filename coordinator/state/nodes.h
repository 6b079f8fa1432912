#pragma once

#include "coordinator/state/cluster.h"

// Nodes: attach, loss, and the order in which a report is applied.
//
// An attached agent keeps its node name until its stream has been closed for `detach_grace` or it
// has been silent for a lease. A later start of the same agent takes over at once; another agent is
// refused meanwhile. The replicas of a lost node do not count, its restore tasks and
// repairs are reset, and the members of its groups get its state. When it attaches, its inventory
// replaces all that was known of it. No node is declared lost for one lease after the coordinator
// was suspended.

namespace holdfast::coord {

/// Attaches the node with its inventory, or refuses its agent.
void OnNodeAttached(Context& context, const NodeAttached& event);

/// The stream ended: the node counts as lost unless it attaches again soon.
void OnNodeDetached(Context& context, const NodeDetached& event);

/// The node is known to be out of reach.
void OnNodeLost(Context& context, const NodeLost& event);

/// Applies a report: trainers, removed, stored and failed replicas, prepared shards, joins.
void OnNodeReported(Context& context, const NodeReported& event);

/// Declares silent nodes lost, and probes those that may be.
void AdvanceNodes(Context& context, const Tick& event);

}  // namespace holdfast::coord
