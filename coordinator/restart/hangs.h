#pragma once

#include "coordinator/restart/run_table.h"

// The action on faults that the detector reports while the processes of a job run.
//
// A slow job gets an incident. A hang gets one at once, and a restart when it has lasted for its
// patience: that of its kind, or that of the run if one is set. The patience is at least the
// longest pause after which the job continued on its own, and at least twice the last patience if a
// restart led to the same step again. The configured action (off, alert, restart) limits what is
// done. Faults of an incarnation that is over are ignored, since its ranks stop in any case.

namespace holdfast::coord {

/// Takes the action on the fault: none, an incident, or a restart.
void HandleFault(RunContext& context, const FaultDetected& event);

}  // namespace holdfast::coord
