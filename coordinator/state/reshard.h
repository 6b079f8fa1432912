#pragma once

#include "coordinator/state/cluster.h"

// Reshards: ranks read what they need from all ranks' shards, on any nodes. The version is decided
// as for every restore (restore.h), but no shard is prepared, and the world of the version may
// differ from that of the run. Only good replicas, and decodes from them, count.

namespace holdfast::coord {

/// Returns the slowest tier that any rank's shard is read from. A shard is read from its nearest
/// replica, or decoded at tier peer if it has none.
Tier ReshardTier(const VersionState& version);

/// Answers a rank that requests a reshard. Returns false if a shard is missing and nodes that may
/// have it can still return.
bool AnswerReshard(Context& context, Job& job, const VersionState& version,
                   const RestoreWaiter& waiter);

}  // namespace holdfast::coord
