#pragma once

#include <map>

#include "coordinator/state/cluster.h"

// Copies of the shards that only drained nodes have on disk, for versions without parity groups: no
// group can rebuild them.
//
// Another node copies each of these shards to its own disks: of the newest version on disk, and of
// pinned versions. A version that is at a shared tier needs no copy. A copy that has begun is
// completed before a newer version is chosen, unless it fails. After a failure, another node tries.

namespace holdfast::coord {

/// Adds to `missing` the copies of the job's shards that drained nodes have.
void PlanDrainCopies(const ReadContext& context, const Job& job,
                     std::map<RepairKey, Repair>& missing);

/// Returns the shard's replica that another node copies, or kDecode if no node has it on disk.
Replica SourceOfCopy(const RankShard& shard);

}  // namespace holdfast::coord
