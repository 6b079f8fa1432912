#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/api/coordinator.pb.h"

namespace holdfast::faults {

/// Returns the IP addresses at which peers and readers reach `peer`; with an empty `peer`, all
/// nodes except `node`. FailedPrecondition: they are reached only through unix sockets and
/// loopback, so there is no link to cut.
Result<std::vector<std::string>> LinksOf(const coordinator::GetStatusReply& status,
                                         const std::string& node, const std::string& peer);

}  // namespace holdfast::faults
