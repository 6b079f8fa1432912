#pragma once

#include <functional>

#include "agent/pipeline/restore_tools.h"

namespace holdfast::agent {

/// Copies a shard from this node's disk to the shared tier `prepare.into`, chunk by chunk. Each
/// chunk is checked against the seal before it is written. On success the shard is durable there
/// and reported; a shard that is there already is only reported. A failure of the tier is
/// Unavailable or OutOfSpace, so that it does not count against the replica on disk; DataLoss and
/// NotFound are about that replica, and are reported. Ends between two windows when `stopping`
/// returns true. Blocks as long as the tier's file system does.
Status CopyToTier(const RestoreTools& tools, const PrepareTask& prepare,
                  const std::function<bool()>& stopping);

}  // namespace holdfast::agent
