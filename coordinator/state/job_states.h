#pragma once

#include "coordinator/state/cluster.h"

// The job state that agents get: what is committed, which versions are aborted, the targets, the
// node's parity group, and whether memory is released. Every subscriber of the job gets the job
// state when it changes. A node also gets it when it attaches, and when it reports a replica of a
// version that is aborted or being removed.

namespace holdfast::coord {

/// Returns the job state without a parity group.
JobState JobStateOf(const ReadContext& context, const Job& job);

/// Sends the job state to the nodes that are due to get it. Only the parity group in it differs
/// between nodes.
void SendJobStates(Context& context, Job& job);

}  // namespace holdfast::coord
