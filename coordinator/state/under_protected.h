#pragma once

#include <vector>

#include "coordinator/state/cluster.h"
#include "coordinator/state/statuses.h"

// Under-protected versions: versions committed on disk that lack there some of the shards that
// their parity groups should keep. Operators see them at once if a node is away. Otherwise they see
// them after 15 s, since the shards may still be on their way.

namespace holdfast::coord {

/// Counts, for each version committed on disk, the shards that its parity groups should keep there
/// and those that are missing.
void CountUnderProtected(Context& context, Job& job);

/// Returns the under-protected versions that operators should see, newest first.
std::vector<UnderProtectedStatus> UnderProtectedOf(const ReadContext& context, const Job& job);

}  // namespace holdfast::coord
