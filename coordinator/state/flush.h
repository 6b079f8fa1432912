#pragma once

#include <map>
#include <string>

#include "coordinator/state/cluster.h"

// Flush: the newest version is taken to every tier when no newer one follows.
//
// The targets of the tiers select only newer versions. A flush starts when no newer version has
// come for `flush_after`, when the job is over, or when a trainer waits for a tier. It writes the
// missing shards of the newest version from memory, as repairs, until the version is on disk and at
// peer. Tiers that failed before are tried again. While the disks write another version, the flush
// waits for it, but only for a limited time.

namespace holdfast::coord {

/// Returns the newest committed version if it is not at every tier and no newer one follows, else
/// nullptr.
VersionState* VersionToFlush(const ReadContext& context, Job& job);

/// Adds to `missing` the shards that a flush of the newest version still has to write: ranks'
/// shards on disk, and parity in memory.
void PlanFlush(Context& context, Job& job, std::map<RepairKey, Repair>& missing);

/// Returns why the newest version of a job is not durable although no newer one follows; empty if
/// it is at every tier, or if a running job may still be about to write it.
std::string WhyNotDurable(const ReadContext& context, const Job& job);

}  // namespace holdfast::coord
