#pragma once

#include "coordinator/detect/hang.h"
#include "coordinator/detect/table.h"

// Finds hangs of jobs that report steps and no operations. It is not known which rank waits for
// which other one, only which ranks have made no step for a long time.

namespace holdfast::detect {

/// Returns the hangs of a job whose ranks do not wait for each other in operations: none is
/// reported, or none takes long (`communicates`). A stopped process is a verdict after
/// `hang_after`. A silent node is a verdict after `silent_after` if no other rank makes a step, and
/// an alert after `absent_after` if others do. Everything else is an alert, since no rank is known
/// to wait for another:
///   a rank that makes no step while at least half of the ranks do, and
///   a job in which no rank makes a step, unless it communicates: it may evaluate.
/// Both must last for `absent_after` (a single rank whose process does not run: `idle_after`) plus
/// the rank's usual step, for 1.5 times its longest recent step, and for 1.25 times the job's
/// longest pause. Ranks in a marked phase are excused, and so are ranks that may wait for them.
Hangs FindStandstill(const Table& table, Clock::TimePoint now, const DetectorOptions& options,
                     bool communicates);

}  // namespace holdfast::detect
