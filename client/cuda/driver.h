#pragma once

#include <cuda.h>

#include <string>
#include <type_traits>

namespace holdfast::cuda {

/// The driver's functions that the copier uses, resolved at run time. The plugin does not link
/// libcuda: on a machine without a driver it can be built and loaded, and reports the error.
struct Driver {
#define HOLDFAST_DRIVER_FUNCTIONS(X)                                                        \
  X(Init, cuInit, CUresult(unsigned))                                                       \
  X(GetErrorString, cuGetErrorString, CUresult(CUresult, const char**))                     \
  X(DeviceGet, cuDeviceGet, CUresult(CUdevice*, int))                                       \
  X(DeviceGetCount, cuDeviceGetCount, CUresult(int*))                                       \
  X(PrimaryCtxRetain, cuDevicePrimaryCtxRetain, CUresult(CUcontext*, CUdevice))             \
  X(PrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, CUresult(CUdevice))                    \
  X(CtxPush, cuCtxPushCurrent_v2, CUresult(CUcontext))                                      \
  X(CtxPop, cuCtxPopCurrent_v2, CUresult(CUcontext*))                                       \
  X(CtxSynchronize, cuCtxSynchronize, CUresult())                                           \
  X(StreamCreate, cuStreamCreate, CUresult(CUstream*, unsigned))                            \
  X(StreamDestroy, cuStreamDestroy_v2, CUresult(CUstream))                                  \
  X(StreamGetCtx, cuStreamGetCtx, CUresult(CUstream, CUcontext*))                           \
  X(StreamWaitEvent, cuStreamWaitEvent, CUresult(CUstream, CUevent, unsigned))              \
  X(StreamSynchronize, cuStreamSynchronize, CUresult(CUstream))                             \
  X(EventCreate, cuEventCreate, CUresult(CUevent*, unsigned))                               \
  X(EventDestroy, cuEventDestroy_v2, CUresult(CUevent))                                     \
  X(EventRecord, cuEventRecord, CUresult(CUevent, CUstream))                                \
  X(EventQuery, cuEventQuery, CUresult(CUevent))                                            \
  X(EventSynchronize, cuEventSynchronize, CUresult(CUevent))                                \
  X(StreamIsCapturing, cuStreamIsCapturing, CUresult(CUstream, CUstreamCaptureStatus*))     \
  X(ExchangeCaptureMode, cuThreadExchangeStreamCaptureMode, CUresult(CUstreamCaptureMode*)) \
  X(HostAlloc, cuMemHostAlloc, CUresult(void**, size_t, unsigned))                          \
  X(HostFree, cuMemFreeHost, CUresult(void*))                                               \
  X(HostRegister, cuMemHostRegister_v2, CUresult(void*, size_t, unsigned))                  \
  X(HostUnregister, cuMemHostUnregister, CUresult(void*))                                   \
  X(CopyToHost, cuMemcpyDtoHAsync_v2, CUresult(void*, CUdeviceptr, size_t, CUstream))       \
  X(CopyToDevice, cuMemcpyHtoDAsync_v2, CUresult(CUdeviceptr, const void*, size_t, CUstream))
#define X(name, symbol, type) std::add_pointer_t<type> name = nullptr;
  HOLDFAST_DRIVER_FUNCTIONS(X)
#undef X
  /// The allocation of an address; nullptr where the driver lacks it.
  CUresult (*GetAddressRange)(CUdeviceptr*, size_t*, CUdeviceptr) = nullptr;
  /// Many copies with one call; nullptr where the driver is older than CUDA 13.
  CUresult (*CopyBatch)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*, size_t*,
                        size_t, CUstream) = nullptr;

  // For the kernel; nullptr where the driver lacks one of them.
#define HOLDFAST_KERNEL_FUNCTIONS(X)                                                             \
  X(HostGetDevicePointer, cuMemHostGetDevicePointer_v2, CUresult(CUdeviceptr*, void*, unsigned)) \
  X(ModuleLoadData, cuModuleLoadData, CUresult(CUmodule*, const void*))                          \
  X(ModuleUnload, cuModuleUnload, CUresult(CUmodule))                                            \
  X(ModuleGetFunction, cuModuleGetFunction, CUresult(CUfunction*, CUmodule, const char*))        \
  X(MemAlloc, cuMemAlloc_v2, CUresult(CUdeviceptr*, size_t))                                     \
  X(MemFree, cuMemFree_v2, CUresult(CUdeviceptr))                                                \
  X(LaunchKernel, cuLaunchKernel,                                                                \
    CUresult(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,   \
             CUstream, void**, void**))
#define X(name, symbol, type) std::add_pointer_t<type> name = nullptr;
  HOLDFAST_KERNEL_FUNCTIONS(X)
#undef X
  bool has_kernels() const {
#define X(name, symbol, type) &&(name) != nullptr
    return true HOLDFAST_KERNEL_FUNCTIONS(X);
#undef X
  }

  /// Loads and initialises the driver once per process. Returns nullptr, with the reason in `why`,
  /// when there is no driver or it is too old.
  static const Driver* Load(std::string* why);
  /// Returns a message such as "cuEventCreate: out of memory"; empty for success.
  std::string Text(const char* what, CUresult result) const;
};

}  // namespace holdfast::cuda
