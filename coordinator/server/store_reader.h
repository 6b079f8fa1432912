#pragma once

#include <vector>

#include "base/status.h"
#include "coordinator/server/config.h"
#include "coordinator/store/meta_store.h"

namespace holdfast::coord {

/// Reads all records of the configured store, as of one moment, while any coordinator writes to it:
/// everything that a coordinator has answered before the call is among them. Threads: any.
Result<std::vector<KeyValue>> ReadStore(const CoordinatorConfig& config);

}  // namespace holdfast::coord
