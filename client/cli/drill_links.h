#pragma once

#include <string>
#include <vector>

#include "coordinator/api/coordinator.pb.h"
#include "storage/base/status.h"

namespace holdfast::cli {

/// The IP addresses under which `peer`, or all nodes but `node` where it is empty, are reached by
/// their peers and by readers.
/// FailedPrecondition: only by unix sockets and over loopback, where there is no link to strike.
Result<std::vector<std::string>> LinksOf(const coordinator::GetStatusReply& status,
                                         const std::string& node, const std::string& peer);

}  // namespace holdfast::cli
