#pragma once

#include "coordinator/state/cluster.h"

// Joins and fencing: which incarnation a rank belongs to, and whether it may join.
//
// A new run ID opens the next incarnation, above the current one and above every number that a node
// reported for the job. A rank with the current run ID joins the current incarnation. Run IDs of
// earlier incarnations are fenced. A new process with the current run ID also opens an incarnation,
// if steps were saved and its rank has joined before. Its join waits until no rank of the previous
// start is still running.

namespace holdfast::coord {

/// Admits the rank, makes it wait, or refuses it.
void OnRankJoined(Context& context, const RankJoined& event);

/// Handles the joins that wait for the end of the previous start. The first one opens an
/// incarnation, and the others join it.
void AdvanceJoins(Context& context, Job& job);

}  // namespace holdfast::coord
