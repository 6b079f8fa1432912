#pragma once

#include "coordinator/restart/incidents.h"
#include "coordinator/restart/run_table.h"

// What follows when a launch has failed: an incident, and a restart, a pause or the end of the run.
//
// The restart budget counts every failed launch, and ends the run when it is used up. The run also
// ends when the job itself is at fault: several launches in a row exited on their own before any
// progress. After launches without progress the next one waits, at first not, then doubling. A node
// that breaks several launches in a row gets a strike for each and is quarantined, unless the same
// exit happened elsewhere too or nothing was ever saved.

namespace holdfast::coord {

/// Handles the failure of the current launch.
void FailLaunch(RunContext& context, Run& run, Failure failure);

}  // namespace holdfast::coord
