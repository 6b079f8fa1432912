#pragma once

#include "base/metrics/metrics_page.h"
#include "coordinator/relay/agent_service.h"
#include "coordinator/relay/upstream.h"

namespace holdfast::coord::relay {

/// Returns the specifications of all metrics of a relay.
MetricSpecs RelayMetrics();

/// Collects the current values. Threads: any.
MetricsPage CollectMetrics(AgentService& agents, Upstream& upstream);

}  // namespace holdfast::coord::relay
