#pragma once

#include "coordinator/restart/run_table.h"

// Requests of operators: start and stop runs, quarantine and release nodes.
//
// A job has at most one run that has not ended. A stop waits until disk has the newest version that
// memory had at the request, or until its deadline. A release also clears the strikes of the node
// and its GPU errors.

namespace holdfast::coord {

/// Starts a run. It launches when its nodes are available.
void StartRun(RunContext& context, const RunRequested& event);

/// Stops a run, at once if it waits for nodes.
void StopRun(RunContext& context, const StopRequested& event);

/// Quarantines a node, or releases it.
void ChangeQuarantine(RunContext& context, const QuarantineRequested& event);

}  // namespace holdfast::coord
