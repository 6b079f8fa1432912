#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/api/coordinator.pb.h"
#include "coordinator/restart/run_events.h"
#include "coordinator/state/events.h"

namespace holdfast::coord {

// Converts agents' requests into events. These functions check every name, number and length; State
// and Supervisor check only what depends on their own data. InvalidArgument states the error.

/// FailedPrecondition for an agent of another cluster.
Result<NodeAttached> ReadAttach(const coordinator::AttachRequest& request,
                                const std::string& cluster);
Result<NodeReported> ReadReport(const coordinator::ReportRequest& request);
/// Returns the result of the self-test with this number if the report has it, or a result without
/// parts if the agent cannot test its node; nullopt otherwise.
std::optional<SelfTested> SelfTestedOf(const coordinator::ReportRequest& request, uint64_t number);
Result<RankJoined> ReadJoin(const coordinator::JoinRequest& request);
Result<RestoreRequested> ReadRestore(const coordinator::DecideRestoreRequest& request);

}  // namespace holdfast::coord
