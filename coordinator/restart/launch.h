#pragma once

#include <set>
#include <string>

#include "coordinator/restart/run_table.h"

// Launches of a run, and the directives with the workers of each node.
//
// A run launches as soon as enough nodes are usable: attached, able to launch workers, not in
// quarantine, not drained, and without another run. The first launch also waits for the spares.
// placement.h decides which node gets which ranks; nodes to avoid after the last failure or a GPU
// error come last. Each launch has its own run ID, so a directive with a new one makes a node
// first stop what is left of the old launch. Nodes of a run that waits or has ended get a
// directive without workers.

namespace holdfast::coord {

/// Launches the run if enough nodes are usable. Otherwise records how many nodes the run lacks, and
/// why the others are not usable.
void TryLaunch(RunContext& context, Run& run);

/// Ends the run: its nodes stop its workers, and its open incidents are closed.
void EndRun(RunContext& context, Run& run, RunPhase phase, std::string why);

/// Returns the nodes that may get workers of `run` (nullptr: nodes without any run).
std::set<std::string> UsableNodes(const RunReadContext& context, const Run* run);

/// Sends the node the directive with its workers of the job, or with none.
void SendWorkers(RunContext& context, const std::string& name, const std::string& job);

/// Sends each node of the newest launch its directive.
void SendWorkersToNodes(RunContext& context, const Run& run);

}  // namespace holdfast::coord
