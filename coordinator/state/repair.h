#pragma once

#include "coordinator/state/cluster.h"

// Repair of missing redundancy: shards that a version lacks at a tier where it is committed.
//
// On disk, each rank's shard and each parity shard belongs on its member's node. In memory, only
// the newest version at peer is repaired: its parity, and the shards of running ranks. A missing
// shard is repaired from the other tier of its node or decoded from its group. The repair is
// delayed by a grace if the node may still be writing the shard, but not if the shard is damaged.
// The newest version comes first, and each node has one repair at a time. Repairs wait until no
// restore is pending.

namespace holdfast::coord {

/// Checks all shards that should exist and sends the repairs that are due. One check costs as much
/// as a commit. The check runs after events that change redundancy, and with each tick while a
/// shard is missing. Shards on disk are repaired whether or not the job runs.
void AdvanceRepairs(Context& context, Job& job);

/// Records the result of a repair; a failed one is tried again later.
void OnRepaired(Context& context, Job& job, const PendingPrepare& pending,
                const Prepared& prepared);

/// Resets the repairs in progress on the node: it will not reply to their directives.
void CancelRepairsOf(Context& context, NodeIndex node);

}  // namespace holdfast::coord
