#pragma once

#include <cuda.h>

#include <cstddef>
#include <span>

#include "client/cuda/copy_schedule.h"
#include "client/cuda/driver.h"

namespace holdfast::cuda {

enum class Direction { kToHost, kToDevice };

/// Enqueues runs on `stream` for a copy engine: one call where the driver has batches. The device's
/// context is current.
CUresult EnqueueRuns(const Driver& driver, std::span<const CopyRun> runs, std::byte* slot,
                     Direction direction, CUstream stream);

}  // namespace holdfast::cuda
