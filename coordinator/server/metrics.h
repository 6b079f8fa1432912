#pragma once

#include "coordinator/metrics/metrics_page.h"
#include "coordinator/server/applier.h"
#include "coordinator/server/watcher.h"

namespace holdfast::coord {

/// All that the coordinator shows.
MetricSpecs CoordinatorMetrics();

/// Their values now. Waits a moment for the applier, and shows what can be had without it when it
/// does not answer. Threads: any.
MetricsPage CollectMetrics(Applier& applier, Watcher& watcher, Clock& clock);

}  // namespace holdfast::coord
