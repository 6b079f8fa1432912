#pragma once

#include <optional>
#include <string>

#include "agent/workers/worker.h"
#include "base/fd.h"
#include "base/status.h"

// The files in a worker's folder. They are valid for one boot of the machine, so they are not
// synced. Each file is renamed to its final name when it is complete.

namespace holdfast::agent {

Status WriteSpec(const std::string& folder, const WorkerSpec& spec);
Result<WorkerSpec> ReadSpec(const std::string& folder);

/// The processes of a worker: the worker itself and the shim, its parent.
struct WorkerPids {
  ProcessName worker;
  ProcessName shim;
};
Status WritePids(const std::string& folder, const WorkerPids& pids);
std::optional<WorkerPids> ReadPids(const std::string& folder);

Status WriteExit(const std::string& folder, const WorkerExit& exit);
std::optional<WorkerExit> ReadExit(const std::string& folder);

/// Opens the log of a worker for appending, and creates it for user `uid`, mode 0600. The folder
/// may belong to that user: a link, a file with a second name or one of a third user is refused
/// (PermissionDenied).
Result<UniqueFd> OpenLog(const std::string& path, std::optional<uint32_t> uid);

/// Returns CLOCK_BOOTTIME in nanoseconds.
int64_t BootNanos();

}  // namespace holdfast::agent
