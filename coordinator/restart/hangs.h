#pragma once

#include "coordinator/restart/run_table.h"

// The action on faults that the detector reports while the processes of a job run.
//
// A slow job gets an incident. A hang gets one at once, and a restart when it has lasted for its
// patience: that of its kind or of the run, at least the longest pause after which the job
// continued on its own, and twice the last patience if a restart led to the same step again. The
// configured action (off, alert, restart) limits what is done. Faults of an incarnation that is
// over are ignored, since its ranks naturally stop.

namespace holdfast::coord {

/// Decides what is done about the fault, and does it.
void HandleFault(RunContext& context, const FaultDetected& event);

}  // namespace holdfast::coord
