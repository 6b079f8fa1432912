#pragma once

#include <optional>
#include <string>

#include "agent/workers/worker.h"
#include "storage/base/status.h"

// What lies in the folder of a worker, for one boot of the machine: nothing is synced. Each file
// appears whole, under its final name.

namespace holdfast::agent {

Status WriteSpec(const std::string& folder, const WorkerSpec& spec);
Result<WorkerSpec> ReadSpec(const std::string& folder);

/// Who runs: the worker, and the shim that is its parent.
struct WorkerPids {
  ProcessName worker;
  ProcessName shim;
};
Status WritePids(const std::string& folder, const WorkerPids& pids);
std::optional<WorkerPids> ReadPids(const std::string& folder);

Status WriteExit(const std::string& folder, const WorkerExit& exit);
std::optional<WorkerExit> ReadExit(const std::string& folder);

/// CLOCK_BOOTTIME.
int64_t BootNanos();

}  // namespace holdfast::agent
