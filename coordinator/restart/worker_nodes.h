#pragma once

#include "coordinator/restart/run_table.h"

// What is known of the nodes that launch workers: whether they are attached, when they last sent a
// message, and their workers.
//
// A node that attaches gets the directives of all its jobs again. Nodes that were lost within one
// lease of each other share a cause and probably come back, so they are marked. The functions
// return whether runs may have to react; most reports change nothing.

namespace holdfast::coord {

/// The node attached.
void RecordAttached(RunContext& context, const NodeAttached& event);

/// Records a report of the node. Returns whether its workers changed.
bool RecordReport(RunContext& context, const NodeReported& event);

/// The stream of the node ended. Returns whether it was the current one. The node counts as lost
/// unless it attaches again soon.
bool RecordDetached(RunContext& context, const NodeDetached& event);
/// The node is lost, and its workers are unknown until it attaches again.
void RecordLost(RunContext& context, const NodeDeclaredLost& lost);

}  // namespace holdfast::coord
