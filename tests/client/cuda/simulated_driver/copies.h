#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tests/client/cuda/simulated_driver/call.h"

namespace holdfast::cuda::simulated {

/// One run of bytes. Source and target are addresses on a device or in this process.
struct Copy {
  CUdeviceptr to = 0;
  CUdeviceptr from = 0;
  size_t bytes = 0;
};

/// Calls `part` with an offset and a size until all `bytes` are covered. Other threads may run in
/// between.
template <typename Part>
void InParts(size_t bytes, Part part) {
  constexpr size_t kPartBytes = 64 << 10;
  for (size_t at = 0; at < bytes; at += kPartBytes) {
    if (at > 0) Jitter();
    part(at, std::min(kPartBytes, bytes - at));
  }
}

/// Copies immediately, without the lock.
CUresult RunCopies(const std::vector<Copy>& copies, int device);

/// Queues copies as one operation. With pageable host memory, returns when the copies are done, as
/// a driver may.
CUresult QueueCopies(Call& call, Stream& stream, std::vector<Copy> copies);

}  // namespace holdfast::cuda::simulated
