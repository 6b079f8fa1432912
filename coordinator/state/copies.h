#pragma once

#include <map>

#include "coordinator/state/cluster.h"

// Copies: which versions on disk are copied to the tiers that are written from disk
// (TierPace::kCopy), and by which nodes.
//
// One version at a time is copied to a tier: the newest one that is complete on disk, when it is
// far enough from the newest version at the tier (`every_steps`, `interval`), when the job is over,
// or when a trainer waits for the tier. A node that has the shard on its disk writes it; the orders
// are repairs. A newer version replaces a copy whose retry is due, and never a copy in
// progress: a file system that hangs delays no other tier. Nodes bound the writes in progress.

namespace holdfast::coord {

/// Chooses the version to copy to each tier, and adds the shards to write to `missing`. Also adds
/// shards that a version lacks at a tier where it is committed.
void PlanCopies(Context& context, Job& job, std::map<RepairKey, Repair>& missing);

/// Whether a version is being copied to a tier, or should be.
bool HasCopiesDue(const ReadContext& context, const Job& job);

}  // namespace holdfast::coord
