#pragma once

#include "coordinator/restart/run_table.h"

// The course of one run: from waiting for nodes through its launches to its end.
//
// After each event that may matter, a run is advanced: ended workers and a complete start are
// recorded, a failure of the launch is found and handled, a requested stop is carried out when its
// version is on disk, and a waiting run launches when its pause is over. A run finishes when every
// worker of a launch ended with exit code 0. Workers on nodes where the launch did not place them
// are ignored.

namespace holdfast::coord {

/// Takes every step of the run that is due.
void AdvanceRun(RunContext& context, Run& run);

}  // namespace holdfast::coord
