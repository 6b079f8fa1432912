#pragma once

#include "coordinator/state/cluster.h"

// The job state that agents get: what is committed, which versions are aborted, the targets, the
// node's parity group, and whether memory is released. Every subscriber of the job gets it when it
// changes. A node also gets it when it attaches, or reports a replica of a version that is over.

namespace holdfast::coord {

/// Returns the job state without a parity group.
JobState JobStateOf(const Job& job);

/// Sends the same job state to each node, except for the node's parity group.
void SendJobStates(Context& context, Job& job);

}  // namespace holdfast::coord
