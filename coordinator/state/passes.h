#pragma once

#include "coordinator/state/cluster.h"

// What is done as time passes, after each event and after each batch of events.
//
// An event only changes data and marks the jobs whose rules have to run. After it, the rules of
// each marked job run once, in a fixed order: restore, retention, targets, job states to the nodes,
// removals. What reads a whole job follows a batch: repairs, and the record of the job. A rule may
// mark the job for the rules after it in this order. A mark for a rule that has already run takes
// effect with the next event, at the latest with the next tick. So the work of an event is bounded,
// and the order of its effects does not depend on which change was found first.

namespace holdfast::coord {

/// Declares silent nodes lost, and advances every job.
void OnTick(Context& context, const Tick& event);

/// Runs the rules of the jobs that the event marked.
void ApplyChanges(Context& context);

/// Repairs and stores the jobs that the events of a batch marked for that. Thousands of nodes may
/// join, attach or be lost in one batch, and each would cost the time of all.
void FinishBatch(Context& context);

}  // namespace holdfast::coord
