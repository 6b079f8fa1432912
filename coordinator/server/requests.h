#pragma once

#include <string>

#include "coordinator/api/coordinator.pb.h"
#include "coordinator/state/events.h"

namespace holdfast::coord {

// What agents send, as events. Every name, number and length is checked here: State and Supervisor
// bound only what depends on what they know. InvalidArgument says what is wrong.

/// FailedPrecondition for an agent of another cluster.
Result<NodeAttached> ReadAttach(const coordinator::AttachRequest& request,
                                const std::string& cluster);
Result<NodeReported> ReadReport(const coordinator::ReportRequest& request);
Result<RankJoined> ReadJoin(const coordinator::JoinRequest& request);

}  // namespace holdfast::coord
