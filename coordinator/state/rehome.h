#pragma once

#include "coordinator/state/cluster.h"

// Rehoming: another node takes the place of a permanently lost node in the parity groups, so that
// its shards of the versions on disk can be rebuilt there.
//
// A place is given away when its node has been away for `rehome_after`, and only in plans that have
// versions on disk. A node that returns gets its place back if its replacement has no shards yet or
// is away too long itself.

namespace holdfast::coord {

/// Gives the place of each node that has been away for `rehome_after` to another node. A node that
/// returns gets its place back if its replacement has no shards yet or is away too long itself.
void RehomeLost(Context& context, Job& job);

}  // namespace holdfast::coord
