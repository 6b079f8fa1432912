#pragma once

#include <string>
#include <vector>

#include "coordinator/api/coordinator.pb.h"
#include "storage/base/status.h"

namespace holdfast::cli {

/// The IP addresses under which the nodes but `node` are reached by their peers and by readers.
/// FailedPrecondition: only by unix sockets and over loopback, where there is no link to strike.
Result<std::vector<std::string>> AddressesOfOthers(const coordinator::GetStatusReply& status,
                                                   const std::string& node);

}  // namespace holdfast::cli
