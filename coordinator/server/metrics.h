#pragma once

#include "base/metrics/metrics_page.h"
#include "coordinator/server/applier.h"
#include "coordinator/server/watcher.h"

namespace holdfast::coord {

/// Returns the specifications of all metrics of the coordinator.
MetricSpecs CoordinatorMetrics();

/// Collects the current values. Waits at most two seconds for the applier; if the applier does not
/// answer, the page has only the values that do not need it. Threads: any.
MetricsPage CollectMetrics(Applier& applier, Watcher& watcher, Clock& clock);

}  // namespace holdfast::coord
