#pragma once

#include "coordinator/state/cluster.h"

// Retention: which versions are kept, and the removal of the others.
//
// At each tier that is stored (disk, remote) the newest N versions, every K-th step and pinned
// versions are kept. These are never removed: the newest restorable version, the newest committed
// at each tier, the newest on disk with its parity, the restore candidate, and the versions of
// rollbacks. The version that the incarnation restored is kept until a newer one is at least as
// safe. Records of versions that were only in memory are erased when a newer version is on disk.
// Retention removes no version while the recovery barrier is closed.

namespace holdfast::coord {

/// Removes the versions that are not kept, and erases the records of removed and aborted versions
/// that are no longer needed.
void ApplyRetention(Context& context, Job& job);

/// Pins or unpins a version on disk.
void OnPinSet(Context& context, const PinSet& event);

/// Changes how many versions of the job are kept.
void OnRetentionSet(Context& context, const RetentionSet& event);

}  // namespace holdfast::coord
