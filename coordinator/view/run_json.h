#pragma once

#include "base/json/values.h"
#include "coordinator/api/coordinator.pb.h"

namespace holdfast::view {

/// JSON forms of the runs, and of the nodes in quarantine. Environments are left out.
Json RunsJson(const coordinator::GetRunsReply& reply);
Json QuarantineJson(const coordinator::GetRunsReply& reply);
/// The document of `holdfast runs -o json`.
Json RunsDocument(const coordinator::GetRunsReply& reply, int64_t now_wall_nanos);

}  // namespace holdfast::view
