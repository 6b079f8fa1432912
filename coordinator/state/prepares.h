#pragma once

#include <optional>

#include "coordinator/state/cluster.h"

// Directives to prepare a shard on a node, for a restore or a repair, until the node answers.
//
// A source that turns out to be damaged or absent no longer counts as a replica, neither for
// restores nor for repairs. A failed decode rules out no replica: the node that has a damaged one
// reports it.

namespace holdfast::coord {

/// Handles a source that failed for a restore or a repair. A replica that is damaged or absent no
/// longer counts. A failed decode rules out no replica.
void RecordSourceFailure(Context& context, Job& job, const PendingPrepare& pending,
                         const Status& why);

/// Whether a failure with this code means that the source is lost, so that it is not tried again.
bool IsSourceLost(ErrorCode code);

/// Keeps the directive until its reply. Returns its request number.
uint64_t AddPrepare(Context& context, PendingPrepare prepare);

/// Removes and returns the directive that the node replies to. Returns nothing if there is none.
std::optional<PendingPrepare> TakePrepare(Context& context, NodeIndex node, uint64_t request);

}  // namespace holdfast::coord
