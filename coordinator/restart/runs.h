#pragma once

#include "coordinator/restart/run_table.h"

// The course of one run: from waiting for nodes, through its launches, to its end.
//
// A run is advanced after each event to which it may have to react. AdvanceRun() records ended
// workers and a complete start, and finds and handles a failure of the launch. It carries out a
// requested stop when the version is on disk, and launches a waiting run when its pause is over. A
// run finishes when every worker of a launch has ended with exit code 0. Workers on nodes where the
// launch did not place them are ignored.

namespace holdfast::coord {

/// Takes every step of the run that is due.
void AdvanceRun(RunContext& context, Run& run);

}  // namespace holdfast::coord
