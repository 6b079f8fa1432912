#pragma once

#include "coordinator/restart/run_table.h"

// Fills the table after a start of the coordinator.
//
// Runs, incidents, quarantined nodes and suspect nodes come from their records. The progress of a
// launch follows from the lineages and versions of its job. A requested stop is not stored: the
// operator has to request it again. The nodes of a launch have one lease to attach before they
// count as lost.

namespace holdfast::coord {

/// Fills the empty table of `context` from `records`. Adds no effects.
void LoadRuns(RunContext& context, const Records& records);

}  // namespace holdfast::coord
