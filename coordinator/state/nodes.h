#pragma once

#include "coordinator/state/cluster.h"

// Nodes: attach, loss, and the order in which a report is applied.
//
// An attached agent keeps its node name until its stream has been closed for `detach_grace` or it
// has been silent for a lease. A later start of the same agent takes over at once. Any other agent
// is refused while the name is in use. The replicas of a lost node do not count, its restore tasks
// and repairs are reset, and the members of its parity groups get a new job state. When the node
// attaches again, its inventory replaces everything that was recorded of it. No node is declared
// lost for one lease after the coordinator was suspended.

namespace holdfast::coord {

/// Attaches the node with its inventory, or refuses its agent.
void OnNodeAttached(Context& context, const NodeAttached& event);

/// Records that the stream ended: the node counts as lost unless it attaches again soon.
void OnNodeDetached(Context& context, const NodeDetached& event);

/// Declares the node lost, which is known to be out of reach.
void OnNodeLost(Context& context, const NodeLost& event);

/// Applies a report in this order: trainers; removed, stored and failed replicas; prepared shards;
/// waits for a tier. Then advances the joins that wait.
void OnNodeReported(Context& context, const NodeReported& event);

/// Declares nodes lost that have been silent for a lease or whose stream has ended. Probes nodes
/// that have been silent for two fifths of a lease, and waits for the result of the probe.
void AdvanceNodes(Context& context, const Tick& event);

}  // namespace holdfast::coord
