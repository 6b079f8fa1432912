#pragma once

#include "coordinator/restart/run_table.h"

// What is known of the nodes that launch workers: whether they are attached, when they last sent a
// message, and their workers.
//
// A node that attaches gets the directives of all its jobs again. Nodes that were lost within one
// lease of each other are marked: they share a cause and probably come back.

namespace holdfast::coord {

/// Records that the node attached.
void RecordAttached(RunContext& context, const NodeAttached& event);

/// Records a report of the node. Returns whether its workers changed.
bool RecordReport(RunContext& context, const NodeReported& event);

/// Records that a stream of the node ended. Returns whether it was the current one; the node then
/// counts as lost unless it attaches again soon.
bool RecordDetached(RunContext& context, const NodeDetached& event);
/// Records that the node is lost. Its workers are unknown until it attaches again.
void RecordLost(RunContext& context, const NodeDeclaredLost& lost);

}  // namespace holdfast::coord
