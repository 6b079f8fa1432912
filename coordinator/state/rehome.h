#pragma once

#include "coordinator/state/cluster.h"

// Rehoming: another node takes the place of a permanently lost node in the parity groups, so that
// its shards of the versions on disk can be rebuilt there.
//
// A place is given away when its node has been away for `rehome_after`, and only in plans of
// incarnations that have versions on disk. A node that returns gets its place back if its
// replacement has no shards yet or has been away for `rehome_after` too.

namespace holdfast::coord {

/// Applies the rule above to all plans of the job.
void RehomeLost(Context& context, Job& job);

}  // namespace holdfast::coord
