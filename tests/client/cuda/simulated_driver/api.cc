// The driver's functions as CUDA documents them: devices, contexts, streams, events. Where the
// documentation leaves a choice, the simulation takes the stricter one: without a current context,
// every call that may need one fails, and cuMemFree does not wait for work that uses the memory.

#include <cuda.h>

#include <memory>
#include <mutex>
#include <vector>

#include "tests/client/cuda/simulated_driver/call.h"

using holdfast::cuda::simulated::Call;
using holdfast::cuda::simulated::Control;
using holdfast::cuda::simulated::kDevices;
using holdfast::cuda::simulated::Machine;

namespace {
constexpr Control kControl = {
    [] {
      std::lock_guard lock(Machine::Get().mutex);
      return Machine::Get().CountAll();
    },
    [](const char* function, uint64_t n, CUresult result) {
      std::lock_guard lock(Machine::Get().mutex);
      Machine::Get().FailCall(function, n, result);
    },
    [](int device, uint64_t n) {
      std::lock_guard lock(Machine::Get().mutex);
      Machine::Get().FailCopy(device, n);
    },
    [](int device, uint64_t n) {
      std::lock_guard lock(Machine::Get().mutex);
      Machine::Get().HoldCopy(device, n);
    },
    [] {
      std::lock_guard lock(Machine::Get().mutex);
      Machine::Get().LetCopiesGo();
    },
    [] {
      std::lock_guard lock(Machine::Get().mutex);
      Machine::Get().FailNothing();
    },
};

}  // namespace

extern "C" const Control* holdfast_simulated_driver_control() { return &kControl; }

// ---- the library, devices, contexts ------------------------------------------------------------

CUresult cuInit(unsigned flags) {
  Machine& machine = Machine::Get();
  std::lock_guard lock(machine.mutex);
  if (CUresult result = machine.TakeCallFailure(__func__); result != CUDA_SUCCESS) return result;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  machine.initialised = true;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  switch (error) {
    case CUDA_SUCCESS:
      *text = "no error";
      return CUDA_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
      *text = "out of memory";
      return CUDA_SUCCESS;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
      *text = "an illegal memory access was encountered";
      return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_DEVICE:
      *text = "invalid device ordinal";
      return CUDA_SUCCESS;
    default:
      *text = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDeviceGetCount(int* count) {
  Call call(__func__, Call::Needs::kNothing);
  if (!call.failed()) *count = kDevices;
  return call.result;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  Call call(__func__, Call::Needs::kNothing);
  if (call.failed()) return call.result;
  if (ordinal < 0 || ordinal >= kDevices) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  Call call(__func__, Call::Needs::kNothing);
  if (call.failed()) return call.result;
  if (device < 0 || device >= kDevices) return CUDA_ERROR_INVALID_DEVICE;
  *context = call.machine.Retain(device);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  Call call(__func__, Call::Needs::kNothing);
  if (call.failed()) return call.result;
  return call.machine.Release(call.lock, device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  Call call(__func__, Call::Needs::kNothing);
  if (call.failed()) return call.result;
  if (call.machine.FindContext(context) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  call.machine.CurrentContexts().push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  Call call(__func__, Call::Needs::kNothing);
  if (call.failed()) return call.result;
  std::vector<CUcontext>& current = call.machine.CurrentContexts();
  if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = current.back();
  current.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  Call call(__func__, Call::Needs::kNothing);
  if (call.failed()) return call.result;
  const std::vector<CUcontext>& current = call.machine.CurrentContexts();
  *context = current.empty() ? nullptr : current.back();
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  Call call(__func__);
  if (call.failed()) return call.result;
  call.machine.AwaitContext(call.lock, *call.context);
  return call.context->error;
}

// ---- streams and events ------------------------------------------------------------------------

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  Call call(__func__);
  if (call.failed()) return call.result;
  if ((flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
  *stream = call.machine.MakeStream(call.context, (flags & CU_STREAM_NON_BLOCKING) == 0);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
  Call call(__func__, Call::Needs::kContextEvenIfBroken);
  if (call.failed()) return call.result;
  return call.machine.DestroyStream(stream) ? call.context->error : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  Call call(__func__);
  if (call.failed()) return call.result;
  auto stream = call.StreamOf(handle);
  if (stream != nullptr) *context = call.machine.HandleOf(*stream->context);
  return call.result;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  Call call(__func__);
  if (call.failed()) return call.result;
  auto stream = call.StreamOf(handle);
  if (stream == nullptr) return call.result;
  auto found = call.machine.FindEvent(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture != nullptr && found->capture != stream->capture) {
    stream->capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (stream->capture == nullptr && found->capture != nullptr) {
    stream->capture = found->capture;
    found->capture->joined = true;
    return CUDA_SUCCESS;
  }
  // The event's state at this call; it may be recorded again immediately.
  call.machine.Enqueue(*stream, nullptr, found->captured);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  Call call(__func__);
  if (call.failed()) return call.result;
  auto stream = call.StreamOf(handle);
  if (stream == nullptr) return call.result;
  if (stream->capture != nullptr) {
    stream->capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return call.Synchronise(*stream->context, call.machine.Enqueue(*stream, nullptr));
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  Call call(__func__);
  if (call.failed()) return call.result;
  auto stream = call.StreamOf(handle);
  if (stream == nullptr) return call.result;
  call.machine.Enqueue(*stream, [function, data] {
    function(data);
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  Call call(__func__);
  if (call.failed()) return call.result;
  constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
  if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  *event = call.machine.MakeEvent(call.context);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  Call call(__func__, Call::Needs::kContextEvenIfBroken);
  if (call.failed()) return call.result;
  return call.machine.DestroyEvent(event) ? call.context->error : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
  Call call(__func__);
  if (call.failed()) return call.result;
  auto stream = call.StreamOf(handle);
  if (stream == nullptr) return call.result;
  auto found = call.machine.FindEvent(event);
  if (found == nullptr || found->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  found->captured = call.machine.Enqueue(*stream, nullptr);
  found->capture = stream->capture;
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  Call call(__func__);
  if (call.failed()) return call.result;
  auto found = call.machine.FindEvent(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (found->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
  if (found->captured != nullptr && !found->captured->done) return CUDA_ERROR_NOT_READY;
  return found->context->error;
}

CUresult cuEventSynchronize(CUevent event) {
  Call call(__func__);
  if (call.failed()) return call.result;
  auto found = call.machine.FindEvent(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (found->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
  return call.Synchronise(*found->context, found->captured);
}
