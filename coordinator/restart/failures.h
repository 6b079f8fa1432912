#pragma once

#include "coordinator/restart/incidents.h"
#include "coordinator/restart/run_table.h"

// What follows when a launch has failed: an incident, and a restart, a pause or the end of the run.
//
// Every failed launch uses one restart of the budget, and the run ends when none is left. The run
// also ends when the job itself is at fault: workers exited on their own in several launches in a
// row before any progress. After the first launch without progress the next one follows at once;
// after each further one it waits, and the wait doubles. A node gets a strike for each launch that
// it breaks, and several in a row quarantine it. A worker that exited on its own causes no strike
// if the same exit happened on another node, if nothing was ever saved, or if the restore of its
// launch was refused.

namespace holdfast::coord {

/// Handles the failure of the current launch.
void FailLaunch(RunContext& context, Run& run, Failure failure);

}  // namespace holdfast::coord
