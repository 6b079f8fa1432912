#pragma once

#include <vector>

#include "coordinator/state/cluster.h"

// Replica reports from agents, and the commits and aborts that follow from them.
//
// A version is committed at a tier, with one record, when every rank of its world has a replica
// there on an attached node. At tier peer it is committed when memory or disk has all data and all
// parity at the planned members. Only the current incarnation commits new versions; a committed one
// may reach more tiers later. A rank seals its steps in order: a newer report aborts the pending
// versions that the rank skipped. Each commit aborts the older pending versions. A report is
// refused if its digest differs from the known one, or if it is of parity and its node is not the
// planned one.

namespace holdfast::coord {

/// Applies reports of replicas. With `inventory` they are the complete list of a node that
/// attaches.
void OnReplicasStored(Context& context, NodeIndex node, std::vector<StoredReplica> replicas,
                      bool inventory);

/// Applies the report that a replica could not be made.
void OnReplicaFailed(Context& context, NodeIndex node, const FailedReplica& failed);

/// Applies the report that a replica is lost or damaged.
void OnReplicaRemoved(Context& context, NodeIndex node, const RemovedReplica& removed);

}  // namespace holdfast::coord
