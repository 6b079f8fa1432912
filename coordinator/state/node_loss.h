#pragma once

#include <string>
#include <vector>

#include "coordinator/state/cluster.h"
#include "coordinator/state/statuses.h"

// The impact of a node loss: applies the rules of a restore to a copy of the versions from which
// the replicas of the lost nodes are removed.

namespace holdfast::coord {

/// Returns the impact on one job, or on all if `only` is empty. NotFound: no such job or node.
Result<std::vector<NodeLossImpact>> ImpactOfLosing(const ReadContext& context,
                                                   const std::string& only,
                                                   const std::vector<std::string>& nodes);

}  // namespace holdfast::coord
