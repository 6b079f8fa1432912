#pragma once

#include "coordinator/state/cluster.h"

// Restore: prepared as ranks join, decided once for all of them.
//
// The candidate is the version that the ranks name, else the newest restorable one. Its shards are
// prepared on the ranks' nodes, each from its nearest source with attempts left. The candidate is
// decided when a rank has requested a restore, every rank is prepared and the recovery barrier is
// open. Until then, a newer candidate replaces it at once, and an older one only when the barrier
// is open. The first request of a job that never committed anything decides a fresh start. After
// the decision every rank gets the same version, even if it makes its request late or repeats it.

namespace holdfast::coord {

/// Refuses the request, answers it with a fresh start, or adds the rank to those that wait.
void OnRestoreRequested(Context& context, const RestoreRequested& event);

/// The rank no longer waits.
void OnRestoreAbandoned(Context& context, const RestoreAbandoned& event);

/// Prepares and decides restores, and answers their requests, after an event that changed the job.
void AdvanceRestore(Context& context, Job& job);

/// Records the result of a directive to prepare a shard for a restore.
void OnShardPrepared(Context& context, Job& job, const PendingPrepare& pending,
                     const Prepared& prepared);

}  // namespace holdfast::coord
