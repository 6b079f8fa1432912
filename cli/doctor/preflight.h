#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/core/options.h"
#include "cli/doctor/finding.h"

namespace holdfast::cli {

struct PreflightOptions {
  std::string config_path;            // of the agent; empty: the packaged path, if it exists
  std::vector<std::string> settings;  // "key=value", over the file
  uint64_t save_bytes = 0;            // that the node's ranks save at a step; 0: not known
  uint64_t disk_bytes = 4ULL << 30;   // most bytes written to each disk
};

/// Checks whether this node is ready for a job: the machine, its disks, and what it reaches. Works
/// without an agent, and while one runs; changes nothing.
/// Errors: a configuration file that does not exist or cannot be parsed.
Result<Findings> RunPreflight(const PreflightOptions& options, const GlobalOptions& global,
                              Clock& clock);

}  // namespace holdfast::cli
