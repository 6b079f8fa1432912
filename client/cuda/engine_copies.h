#pragma once

#include <cuda.h>

#include <cstddef>
#include <span>

#include "client/cuda/copy_schedule.h"
#include "client/cuda/driver.h"

namespace holdfast::cuda {

enum class Direction { kToHost, kToDevice };

/// Enqueues runs on `stream` for a copy engine. The device's context is current.
CUresult EnqueueRuns(const Driver& driver, std::span<const CopyRun> runs, std::byte* slot,
                     Direction direction, CUstream stream);
/// Does the same with one call where the driver has batches. Only for devices without the kernel:
/// driver 580 was seen to refuse valid batches.
CUresult EnqueueBatch(const Driver& driver, std::span<const CopyRun> runs, std::byte* slot,
                      Direction direction, CUstream stream);

}  // namespace holdfast::cuda
