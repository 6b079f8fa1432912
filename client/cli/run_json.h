#pragma once

#include "client/cli/output.h"
#include "coordinator/api/coordinator.pb.h"

namespace holdfast::cli {

/// Machine forms of the runs, and of the nodes that get no workers.
Json RunsJson(const coordinator::GetRunsReply& reply);
Json QuarantineJson(const coordinator::GetRunsReply& reply);

}  // namespace holdfast::cli
