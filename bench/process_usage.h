#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/status.h"

namespace holdfast::bench {

/// What a process has used, from /proc.
struct ProcessUsage {
  double cpu_seconds = 0;  // user and system time of all its threads
  uint64_t resident_bytes = 0;
  uint64_t threads = 0;
  uint64_t descriptors = 0;
};

/// NotFound: no such process, or /proc cannot be read.
Result<ProcessUsage> UsageOf(pid_t pid);

}  // namespace holdfast::bench
