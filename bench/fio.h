#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace holdfast::bench {

struct FioJob {
  std::string dir;
  bool write = true;
  uint64_t bytes = 0;  // per file
  int files = 1;       // each written or read by its own process, concurrently
  uint64_t block_bytes = 1ULL << 20;
  int depth = 16;
};

/// Returns the seconds of one fio run by fio's own clock: io_uring, O_DIRECT; a write ends with
/// fsync. NotFound when fio is not installed.
Result<double> RunFio(const FioJob& job);

/// Returns the fastest of a small grid of fio settings for this job on this disk.
Result<FioJob> BestFio(FioJob job, bool quick);

}  // namespace holdfast::bench
