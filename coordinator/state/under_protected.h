#pragma once

#include <vector>

#include "coordinator/state/cluster.h"
#include "coordinator/state/statuses.h"

// Under-protected versions: those on disk that lack shards there which their parity groups should
// keep. Operators see them at once if a node is away, otherwise after 15 s, since shards may still
// be on their way.

namespace holdfast::coord {

/// Counts the shards on disk that each version lacks there of those that its parity groups should
/// keep.
void CountUnderProtected(Context& context, Job& job);

/// Returns the under-protected versions that operators should see, newest first.
std::vector<UnderProtectedStatus> UnderProtectedOf(const ReadContext& context, const Job& job);

}  // namespace holdfast::coord
