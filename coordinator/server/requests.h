#pragma once

#include <string>

#include "coordinator/api/coordinator.pb.h"
#include "coordinator/state/events.h"

namespace holdfast::coord {

// Converts agents' requests into events. These functions check every name, number and length; State
// and Supervisor check only what depends on their own data. InvalidArgument states the error.

/// FailedPrecondition for an agent of another cluster.
Result<NodeAttached> ReadAttach(const coordinator::AttachRequest& request,
                                const std::string& cluster);
Result<NodeReported> ReadReport(const coordinator::ReportRequest& request);
Result<RankJoined> ReadJoin(const coordinator::JoinRequest& request);

}  // namespace holdfast::coord
