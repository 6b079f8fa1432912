#pragma once

#include "cli/core/output.h"
#include "coordinator/api/coordinator.pb.h"

namespace holdfast::cli {

/// JSON forms of the runs, and of the nodes in quarantine.
Json RunsJson(const coordinator::GetRunsReply& reply);
Json QuarantineJson(const coordinator::GetRunsReply& reply);

}  // namespace holdfast::cli
