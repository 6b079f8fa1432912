#pragma once

#include <vector>

#include "base/json/values.h"
#include "coordinator/view/health.h"

namespace holdfast::view {

/// The document of `holdfast status -o json`. testing/cluster and scripts read it: fields may be
/// added, never renamed.
Json StatusDocument(const ClusterSnapshot& snapshot, const std::vector<Finding>& findings);

}  // namespace holdfast::view
