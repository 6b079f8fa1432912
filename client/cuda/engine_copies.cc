#include "client/cuda/engine_copies.h"

#include <vector>

namespace holdfast::cuda {
CUresult EnqueueRuns(const Driver& driver, std::span<const CopyRun> runs, std::byte* slot,
                     Direction direction, CUstream stream) {
  for (const CopyRun& run : runs) {
    std::byte* on_host = slot + run.slot_offset;
    const CUresult result = direction == Direction::kToHost
                                ? driver.CopyToHost(on_host, run.device, run.bytes, stream)
                                : driver.CopyToDevice(run.device, on_host, run.bytes, stream);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult EnqueueBatch(const Driver& driver, std::span<const CopyRun> runs, std::byte* slot,
                      Direction direction, CUstream stream) {
  if (driver.CopyBatch == nullptr || runs.size() < 2) {
    return EnqueueRuns(driver, runs, slot, direction, stream);
  }
  std::vector<CUdeviceptr> to(runs.size());
  std::vector<CUdeviceptr> from(runs.size());
  std::vector<size_t> sizes(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto on_host = reinterpret_cast<CUdeviceptr>(slot + runs[i].slot_offset);
    to[i] = direction == Direction::kToHost ? on_host : runs[i].device;
    from[i] = direction == Direction::kToHost ? runs[i].device : on_host;
    sizes[i] = runs[i].bytes;
  }
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
  size_t first = 0;
  return driver.CopyBatch(to.data(), from.data(), sizes.data(), runs.size(), &attributes, &first, 1,
                          stream);
}

}  // namespace holdfast::cuda
