#pragma once

#include <cstdint>
#include <optional>

#include "agent/config/config.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/doctor/finding.h"

namespace holdfast::cli {

/// What a node has to hold, and the room for it. Bytes.
struct Capacity {
  uint64_t save_bytes = 0;  // that all ranks of the node save in one version; 0: not known
  uint64_t arena_bytes = 0;
  uint64_t disk_bytes = 0;  // that versions may use: free, or used by versions now
  uint64_t keep_last = 0;   // versions on disk; 0: not known
};

/// Returns the bytes of the newest version of all running jobs that ranks of `node` saved.
uint64_t SavedBytesOf(const std::string& node, const coordinator::GetStatusReply& status,
                      CoordinatorClient& client);
/// The arena against three slots of each rank, and the disks against the versions that retention
/// keeps there. Pure.
Findings CheckCapacity(const Capacity& capacity);

}  // namespace holdfast::cli
