#pragma once

#include <string>

#include "cli/cluster/coordinator_client.h"
#include "coordinator/view/health.h"

namespace holdfast::cli {

/// Asks for everything that `status` shows. The calls run one after another, so the versions of a
/// busy job may be a step ahead of its status. `job` empty: all jobs.
Result<view::ClusterSnapshot> CollectSnapshot(CoordinatorClient& client, const std::string& job,
                                              int64_t now_wall_nanos);

}  // namespace holdfast::cli
