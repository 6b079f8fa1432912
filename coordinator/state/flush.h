#pragma once

#include <map>
#include <string>

#include "coordinator/state/cluster.h"

// Flush: the newest version is taken to every tier when no newer one follows.
//
// The targets of the tiers select only newer versions. So when none came for `flush_after`, when
// the job is over or when a trainer waits for a tier, the missing shards of the newest version are
// written like repairs, from memory, until it is on disk and at peer. Tiers that failed before are
// tried again. While the disks write another version, the flush waits for it, but not for ever.

namespace holdfast::coord {

/// Returns the newest committed version if it is not at every tier and no newer one follows, else
/// nullptr.
VersionState* VersionToFlush(const ReadContext& context, Job& job);

/// Adds what a flush of the newest version needs to `missing`: ranks' shards on disk, from memory,
/// then parity. The targets of the tiers select only newer versions, and none follows.
void PlanFlush(Context& context, Job& job, std::map<RepairKey, Repair>& missing);

/// Returns why the newest version of a job is not durable although no newer one follows; empty if
/// it is at every tier.
std::string WhyNotDurable(const ReadContext& context, const Job& job);

}  // namespace holdfast::coord
