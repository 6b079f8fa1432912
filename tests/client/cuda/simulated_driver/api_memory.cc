// Device memory, pinned memory, and copies between them.

#include <cuda.h>

#include <cstring>
#include <memory>

#include "tests/client/cuda/simulated_driver/copies.h"

using holdfast::cuda::simulated::Call;
using holdfast::cuda::simulated::Copy;
using holdfast::cuda::simulated::InParts;
using holdfast::cuda::simulated::Machine;
using holdfast::cuda::simulated::QueueCopies;

namespace {
/// Queues one copy. `on_device` must be device memory, and `on_host` must not.
CUresult QueueCopy(Call& call, CUstream handle, CUdeviceptr on_device, CUdeviceptr on_host,
                   const Copy& copy) {
  auto stream = call.StreamOf(handle);
  if (stream == nullptr) return call.result;
  if (!call.machine.memory.IsDevice(on_device) || call.machine.memory.IsDevice(on_host)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return copy.bytes == 0 ? CUDA_SUCCESS : QueueCopies(call, *stream, {copy});
}

CUresult ToHost(Call& call, void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  if (call.failed()) return call.result;
  const auto host = reinterpret_cast<CUdeviceptr>(to);
  return QueueCopy(call, stream, from, host, {host, from, bytes});
}

CUresult ToDevice(Call& call, CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  if (call.failed()) return call.result;
  const auto host = reinterpret_cast<CUdeviceptr>(from);
  return QueueCopy(call, stream, to, host, {to, host, bytes});
}
}  // namespace

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  Call call(__func__);
  if (call.failed()) return call.result;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  *address = call.machine.memory.Allocate(call.context->device, bytes);
  return *address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  Call call(__func__);
  if (call.failed()) return call.result;
  return call.machine.memory.FindAllocation(address, base, bytes) ? CUDA_SUCCESS
                                                                  : CUDA_ERROR_NOT_FOUND;
}

CUresult cuMemFree(CUdeviceptr address) {
  Call call(__func__, Call::Needs::kContextEvenIfBroken);
  if (call.failed()) return call.result;
  return call.machine.memory.Free(address) ? call.context->error : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostRegister(void* memory, size_t bytes, unsigned flags) {
  Call call(__func__);
  if (call.failed()) return call.result;
  return call.machine.memory.Register(memory, bytes, call.context->device, flags);
}

CUresult cuMemHostUnregister(void* memory) {
  Call call(__func__, Call::Needs::kContextEvenIfBroken);
  if (call.failed()) return call.result;
  bool in_use = false;
  const CUresult result = call.machine.memory.Unregister(memory, &in_use);
  if (in_use) call.machine.Misuse();
  return result == CUDA_SUCCESS ? call.context->error : result;
}

CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  Call call(__func__);
  if (call.failed()) return call.result;
  if (bytes == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *memory = call.machine.memory.AllocatePinned(bytes, call.context->device);
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* memory) {
  Call call(__func__, Call::Needs::kContextEvenIfBroken);
  if (call.failed()) return call.result;
  bool in_use = false;
  const CUresult result = call.machine.memory.FreePinned(memory, &in_use);
  if (in_use) call.machine.Misuse();
  return result == CUDA_SUCCESS ? call.context->error : result;
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  Call call(__func__);
  return ToHost(call, to, from, bytes, stream);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  Call call(__func__);
  return ToDevice(call, to, from, bytes, stream);
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  Call call(__func__);
  const CUresult result = ToHost(call, to, from, bytes, nullptr);
  if (result != CUDA_SUCCESS) return result;
  return call.Synchronise(*call.context, call.context->legacy->last);
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  Call call(__func__);
  const CUresult result = ToDevice(call, to, from, bytes, nullptr);
  if (result != CUDA_SUCCESS) return result;
  return call.Synchronise(*call.context, call.context->legacy->last);
}

CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, CUstream handle) {
  Call call(__func__);
  if (call.failed()) return call.result;
  auto stream = call.StreamOf(handle);
  if (stream == nullptr) return call.result;
  if (call.machine.memory.Find(at, bytes) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  call.machine.Enqueue(*stream, [at, value, bytes] {
    Machine& machine = Machine::Get();
    std::unique_lock lock(machine.mutex);
    auto to = machine.memory.Find(at, bytes);
    lock.unlock();
    if (to == nullptr) return CUDA_ERROR_ILLEGAL_ADDRESS;
    InParts(bytes,
            [&](size_t offset, size_t part) { std::memset(to.get() + offset, value, part); });
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}
