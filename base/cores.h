#pragma once

#include <cstdint>
#include <string>

namespace holdfast {

/// What the kernel writes into a core dump of a process.
struct CoreSettings {
  uint64_t limit = 0;  // of RLIMIT_CORE; a process may lower it only down to its hard limit
  std::string filter;  // of /proc/self/coredump_filter, in hexadecimal; empty: as it is
};

/// Keeps the memory of this process out of core dumps: it may contain keys, tokens and checkpoints
/// of several users. Call it first in main. Returns what was set before.
CoreSettings KeepMemoryOutOfCores();
/// Sets what a process had before its parent called KeepMemoryOutOfCores().
void RestoreCores(const CoreSettings& settings);

}  // namespace holdfast
