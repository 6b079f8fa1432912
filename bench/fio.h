#pragma once

#include <cstdint>
#include <string>

#include "storage/base/status.h"

namespace holdfast::bench {

struct FioJob {
  std::string dir;
  bool write = true;
  uint64_t bytes = 0;  // a file
  int files = 1;       // written or read by as many processes at once
  uint64_t block_bytes = 1ULL << 20;
  int depth = 16;
};

/// Seconds one fio run takes by its own clock: io_uring, O_DIRECT; a write ends with fsync.
/// NotFound when fio is not installed.
Result<double> RunFio(const FioJob& job);

/// The best of fio's settings for this job on this disk, over a small grid.
Result<FioJob> BestFio(FioJob job, bool quick);

}  // namespace holdfast::bench
