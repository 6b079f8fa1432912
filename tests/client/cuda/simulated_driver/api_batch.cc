// Functions that drivers have since CUDA 13: many copies with one call. They are queued as one
// operation, and run in any order.

#include <cuda.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "tests/client/cuda/simulated_driver/copies.h"

using holdfast::cuda::simulated::Call;
using holdfast::cuda::simulated::Copy;
using holdfast::cuda::simulated::QueueCopies;
using holdfast::cuda::simulated::RunCopies;

namespace {
bool AreValid(const CUmemcpyAttributes* attributes, const size_t* first, size_t attribute_count,
              size_t count) {
  if (attributes == nullptr || first == nullptr || attribute_count == 0) return false;
  if (attribute_count > count || first[0] != 0) return false;
  for (size_t i = 0; i < attribute_count; ++i) {
    if (first[i] >= count || (i > 0 && first[i] <= first[i - 1])) return false;
    if (attributes[i].srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
        attributes[i].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY) {
      return false;
    }
  }
  return true;
}
}  // namespace

CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* first, size_t attribute_count,
                            CUstream handle) {
  Call call(__func__);
  if (call.failed()) return call.result;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return CUDA_ERROR_INVALID_HANDLE;
  auto stream = call.StreamOf(handle);
  if (stream == nullptr) return call.result;
  if (!AreValid(attributes, first, attribute_count, count)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Copy> in_order;
  std::vector<Copy> at_once;
  for (size_t i = 0, kind = 0; i < count; ++i) {
    if (kind + 1 < attribute_count && first[kind + 1] == i) ++kind;
    const bool stream_order = attributes[kind].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    (stream_order ? in_order : at_once).push_back({to[i], from[i], bytes[i]});
  }
  // Refuses attributes that allow sources to be read out of the order of the stream.
  call.lock.unlock();
  CUresult result = RunCopies(at_once, stream->context->device);
  call.lock.lock();
  if (result != CUDA_SUCCESS || in_order.empty()) return result;
  std::shuffle(in_order.begin(), in_order.end(), std::mt19937(static_cast<unsigned>(count)));
  return QueueCopies(call, *stream, std::move(in_order));
}
