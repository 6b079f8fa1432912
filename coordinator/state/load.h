#pragma once

#include "coordinator/state/cluster.h"

// Fills the data after a start of the coordinator from the stored records.
//
// Records hold decisions only. The nodes report which replicas exist when they attach. Until then,
// each node that may have replicas counts as lost since the start of the coordinator. The targets
// of the tiers begin after the newest recorded step.

namespace holdfast::coord {

/// Fills the empty data of `context`. Adds no effects. Returns DataLoss if the records contradict
/// each other.
Status LoadRecords(Context& context, const Records& records);

}  // namespace holdfast::coord
