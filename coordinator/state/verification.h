#pragma once

#include "coordinator/state/cluster.h"

// Verifications: the outcome of the last `holdfast verify` of each committed version, for
// operators. No decision depends on it: an agent reports each damaged replica itself.

namespace holdfast::coord {

/// Stores the outcome with the time at which it arrived, in place of an earlier one.
void OnVersionVerified(Context& context, const VersionVerified& event);

}  // namespace holdfast::coord
