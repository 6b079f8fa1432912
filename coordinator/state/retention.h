#pragma once

#include "coordinator/state/cluster.h"

// Retention: which versions are kept, and the removal of the others.
//
// On disk the newest N versions, every K-th step and pinned versions are kept. Never removed are
// the newest restorable version, the newest committed at each tier, the newest on disk with its
// parity, the restore candidate, the versions of rollbacks, and the version that the incarnation
// restored until one as safe replaces it. Records of versions that were only in memory are erased
// when a newer version is on disk. Nothing is removed while the recovery barrier is closed.

namespace holdfast::coord {

/// Removes what is not kept, and what waits for its removal.
void ApplyRetention(Context& context, Job& job);

/// Pins or unpins a version on disk.
void OnPinSet(Context& context, const PinSet& event);

/// Changes how many versions of the job are kept.
void OnRetentionSet(Context& context, const RetentionSet& event);

}  // namespace holdfast::coord
