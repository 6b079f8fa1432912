#pragma once

#include "coordinator/state/cluster.h"

// What is done as time passes and after each event.
//
// An event only changes data and marks the jobs whose rules have to run. After it, the rules of
// each marked job run once, in a fixed order: restore, retention, targets, job states to the nodes,
// repairs, removals. A rule may mark the job for the rules after it in this order. A mark for a
// rule that has already run takes effect with the next event, at the latest with the next tick. So
// the work of an event is bounded, and the order of its effects does not depend on which change was
// found first.

namespace holdfast::coord {

/// Declares silent nodes lost, and advances every job.
void OnTick(Context& context, const Tick& event);

/// Runs the rules of the jobs that the event marked.
void ApplyChanges(Context& context);

}  // namespace holdfast::coord
