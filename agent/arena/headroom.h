#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace holdfast::agent {

/// How much memory is available and what limits it.
struct MemoryHeadroom {
  uint64_t bytes = 0;
  std::string limit;  // "free memory of this machine", "memory limit of cgroup /x"
};
/// Returns the lowest of MemAvailable and the limits of this process's cgroups (v1 and v2). Ignores
/// values that cannot be read.
MemoryHeadroom AvailableMemory();

/// Checks that `left` of the `bytes` of a segment fit into the available memory, and that enough
/// stays for other processes. ResourceExhausted, with the numbers.
Status CheckHeadroom(uint64_t left, uint64_t bytes);

}  // namespace holdfast::agent
