#pragma once

#include <string>

#include "base/process.h"
#include "base/status.h"
#include "faults/api/order.h"

// The servers of this machine: which process one is, and how it is started again.

namespace holdfast::faults {

/// Returns the process that listens at `endpoint` ("unix:/path" or host:port) on this machine and
/// runs `program` ("holdfast-agent"). NotFound: there is none, or this user may not see it.
Result<ProcessName> ServerAt(const std::string& endpoint, const std::string& program);

/// Returns the program, arguments, environment, folder, user, limits and log files of a process.
Result<Launch> LaunchOf(const ProcessName& process);

/// Returns the folder of the embedded store that a coordinator has open. FailedPrecondition: it has
/// none, since its records are in an etcd.
Result<std::string> EmbeddedStoreOf(const ProcessName& coordinator);

/// Replaces this process by the server. Returns only on failure.
Status Become(const Launch& launch);

/// FailedPrecondition: this process runs as another user and may not signal `process`.
Status CheckMaySignal(const ProcessName& process);

}  // namespace holdfast::faults
