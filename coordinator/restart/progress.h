#pragma once

#include "coordinator/restart/run_table.h"

// The progress of jobs: sealed and committed versions, incarnations and restore decisions.
//
// A run's incarnation is the one that its current run ID opened. The first commit of that
// incarnation in memory ends the recovery: open incidents are closed, and the count of fruitless
// launches is reset. Each newly committed step counts towards a refill of the restart budget; steps
// that are trained again do not. The restore decision determines how many steps an incident cost.

namespace holdfast::coord {

/// Records that an incarnation was opened or its restore was decided.
void RecordLineage(RunContext& context, const LineageRecord& lineage, LineageChange change);

/// Records that a version was committed at a tier.
void RecordCommit(RunContext& context, const PutVersion& put);

/// Records that the ranks of the current launch cannot restore.
void RecordRefusal(RunContext& context, const RestoreRefused& refused);

/// Records which versions the node's ranks have sealed.
void RecordSealed(RunContext& context, const NodeReported& event);

}  // namespace holdfast::coord
