#pragma once

#include "coordinator/detect/hang.h"
#include "coordinator/detect/table.h"

// Hangs of jobs that report steps and no operations. Which rank waits for which is not known, only
// which ranks have made no step for a long time.

namespace holdfast::detect {

/// A stopped process is a verdict after `hang_after`; a silent node of a job that stands still
/// after `silent_after`. All else is an alert, since no rank is seen to wait for another: a rank
/// that makes no step while at least half of the others do, or a job in which no rank makes one,
/// for `absent_after` beyond the rank's usual step, 1.5 times its longest of late and 1.25 times
/// the longest pause of the job. Ranks in a marked phase are excused, and so are ranks that may
/// wait for them. For jobs of which no operation is known.
Hangs FindStandstill(const Table& table, Clock::TimePoint now, const DetectorOptions& options);

}  // namespace holdfast::detect
