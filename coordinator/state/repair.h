#pragma once

#include "coordinator/state/cluster.h"

// Repair of missing redundancy: shards that a version lacks at a tier where it is committed.
//
// On disk each shard and each parity belongs on its member's node. In memory this holds for parity,
// and for the shards of running ranks, of the newest version at peer. A missing shard is repaired
// from the other tier of its node or decoded from its group; one that its node may still be writing
// gets a grace, a damaged one does not. The newest version comes first, with one repair at a time
// for each node. Repairs wait for a pending restore, which has the nodes to itself.

namespace holdfast::coord {

/// Checks all shards that should exist and sends the repairs that are due. One check costs as much
/// as a commit. It runs after events that change redundancy, and while a shard is missing. Shards
/// on disk are repaired whether or not the job runs.
void AdvanceRepairs(Context& context, Job& job);

/// Records the result of a repair; a failed one is tried again later.
void OnRepaired(Context& context, Job& job, const PendingPrepare& pending,
                const Prepared& prepared);

/// Resets the repairs in progress on the node: it will not reply to their directives.
void CancelRepairsOf(Context& context, NodeIndex node);

}  // namespace holdfast::coord
