#pragma once

#include "coordinator/restart/run_table.h"

// Requests of operators: start and stop runs, quarantine and release nodes.
//
// A job has at most one run that has not ended. A stop waits until disk has the newest version that
// memory had at the request, or until its deadline. A release from quarantine also clears the
// node's strikes. Any release makes the node no longer suspect. The node passes its self-test first
// (self_tests.h), unless the operator releases it untested.

namespace holdfast::coord {

/// Starts a run. It launches when its nodes are available.
void StartRun(RunContext& context, const RunRequested& event);

/// Requests the stop of a run. A run that waits ends at once.
void StopRun(RunContext& context, const StopRequested& event);

/// Restarts the runs with workers on a drained node on other nodes, if enough of them are free. No
/// restart of the budget is used, and no incident is opened.
void MoveRuns(RunContext& context, const std::string& node);

/// Quarantines a node, or releases it, at once or after its self-test.
void ChangeQuarantine(RunContext& context, const QuarantineRequested& event);

}  // namespace holdfast::coord
