#pragma once

#include "coordinator/state/job.h"

// Which version the writers of a tier take next (tier_target.h).
//
// A target selects the first version at or after its step that is pending or committed. The target
// advances past the newest step when that version is committed at the tier or can no longer be, or
// when all writers have written, but not the same version. The target of tier peer advances only to
// the version that is being written to disk, if the peers can still take it: the disks alone can
// then restore that version after a loss of nodes. Parity of versions before the target of tier
// peer is no longer built.

namespace holdfast::coord {

/// Advances the targets of the tiers that are due.
void AdvanceTargets(Job& job);

/// Resets the targets of all tiers to `step`, for a new incarnation or after a start of the
/// coordinator.
void RestartTargets(Job& job, Step step);
/// After a start of the coordinator: sets the peer target back to the oldest version that its nodes
/// may be protecting. They free the parity of versions before the target. If the target had passed
/// such a version, a late report could commit it at peer while a node frees its parity.
void ContinueAtPeer(Job& job);

/// Whether `target` selects the version.
bool SelectsVersion(const Job& job, const TierTarget& target, VersionId version);

/// Whether parity of the version, of the current incarnation, may still be built. Its replicas in
/// memory then count although newer versions are committed in memory.
bool MayReachPeer(const Job& job, const VersionState& version);

/// Whether a pending version from the peer target on has all its parity, and only lacks the report
/// that a rank's shard is in memory.
bool ParityAwaitsMemory(const Job& job);

}  // namespace holdfast::coord
