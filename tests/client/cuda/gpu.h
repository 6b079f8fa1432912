#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/client/cuda/simulated_driver/control.h"

namespace holdfast::cuda {

/// The functions of the available driver that tests call directly. The driver is a real one, a
/// simulated one, or missing.
struct Gpu {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
#define HOLDFAST_TEST_DRIVER_FUNCTIONS(X)                                                          \
  X(Init, cuInit, CUresult(unsigned))                                                              \
  X(Count, cuDeviceGetCount, CUresult(int*))                                                       \
  X(Retain, cuDevicePrimaryCtxRetain, CUresult(CUcontext*, CUdevice))                              \
  X(Release, cuDevicePrimaryCtxRelease_v2, CUresult(CUdevice))                                     \
  X(Push, cuCtxPushCurrent_v2, CUresult(CUcontext))                                                \
  X(Pop, cuCtxPopCurrent_v2, CUresult(CUcontext*))                                                 \
  X(Current, cuCtxGetCurrent, CUresult(CUcontext*))                                                \
  X(Synchronize, cuCtxSynchronize, CUresult())                                                     \
  X(Alloc, cuMemAlloc_v2, CUresult(CUdeviceptr*, size_t))                                          \
  X(Free, cuMemFree_v2, CUresult(CUdeviceptr))                                                     \
  X(Register, cuMemHostRegister_v2, CUresult(void*, size_t, unsigned))                             \
  X(Unregister, cuMemHostUnregister, CUresult(void*))                                              \
  X(Upload, cuMemcpyHtoD_v2, CUresult(CUdeviceptr, const void*, size_t))                           \
  X(Download, cuMemcpyDtoH_v2, CUresult(void*, CUdeviceptr, size_t))                               \
  X(ToHost, cuMemcpyDtoHAsync_v2, CUresult(void*, CUdeviceptr, size_t, CUstream))                  \
  X(Fill, cuMemsetD8Async, CUresult(CUdeviceptr, unsigned char, size_t, CUstream))                 \
  X(Launch, cuLaunchHostFunc, CUresult(CUstream, CUhostFn, void*))                                 \
  X(StreamCreate, cuStreamCreate, CUresult(CUstream*, unsigned))                                   \
  X(StreamDestroy, cuStreamDestroy_v2, CUresult(CUstream))                                         \
  X(StreamSynchronize, cuStreamSynchronize, CUresult(CUstream))                                    \
  X(StreamWaitEvent, cuStreamWaitEvent, CUresult(CUstream, CUevent, unsigned))                     \
  X(BeginCapture, cuStreamBeginCapture_v2, CUresult(CUstream, CUstreamCaptureMode))                \
  X(EndCapture, cuStreamEndCapture, CUresult(CUstream, CUgraph*))                                  \
  X(Instantiate, cuGraphInstantiateWithFlags, CUresult(CUgraphExec*, CUgraph, unsigned long long)) \
  X(GraphLaunch, cuGraphLaunch, CUresult(CUgraphExec, CUstream))                                   \
  X(GraphDestroy, cuGraphDestroy, CUresult(CUgraph))                                               \
  X(GraphExecDestroy, cuGraphExecDestroy, CUresult(CUgraphExec))                                   \
  X(EventCreate, cuEventCreate, CUresult(CUevent*, unsigned))                                      \
  X(EventRecord, cuEventRecord, CUresult(CUevent, CUstream))                                       \
  X(EventSynchronize, cuEventSynchronize, CUresult(CUevent))                                       \
  X(EventDestroy, cuEventDestroy_v2, CUresult(CUevent))
#define X(name, symbol, type) std::add_pointer_t<type> name = Get<type>(#symbol);
  HOLDFAST_TEST_DRIVER_FUNCTIONS(X)
#undef X
  /// Null on a real driver.
  const simulated::Control* simulated = nullptr;
  int devices = 0;  // 0: no driver, or none with a device

  /// Returns the instance of this process.
  static const Gpu& Get() {
    static const Gpu gpu;
    return gpu;
  }

 private:
  Gpu() {
    if (library == nullptr || Init == nullptr || Init(0) != CUDA_SUCCESS) return;
    if (Count(&devices) != CUDA_SUCCESS) devices = 0;
    auto* control = Get<simulated::ControlFunction>(simulated::kControlSymbol);
    if (control != nullptr) simulated = control();
  }
  template <typename Function>
  Function* Get(const char* symbol) const {
    if (library == nullptr) return nullptr;
    return reinterpret_cast<Function*>(::dlsym(library, symbol));
  }
};

/// The primary context of a device, current on this thread while it exists.
class OnDevice {
 public:
  explicit OnDevice(int device) : device_(device) {
    EXPECT_EQ(Gpu::Get().Retain(&context_, device), CUDA_SUCCESS);
    EXPECT_EQ(Gpu::Get().Push(context_), CUDA_SUCCESS);
  }
  ~OnDevice() {
    CUcontext popped = nullptr;
    EXPECT_EQ(Gpu::Get().Pop(&popped), CUDA_SUCCESS);
    EXPECT_EQ(popped, context_);
    EXPECT_EQ(Gpu::Get().Release(device_), CUDA_SUCCESS);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  CUcontext context() const { return context_; }

 private:
  int device_;
  CUcontext context_ = nullptr;
};

/// Device memory and a stream of the training, on one device.
class TrainingDevice {
 public:
  using Bytes = std::vector<unsigned char>;

  TrainingDevice(int device, size_t bytes) : index(device), bytes_(bytes) {
    const OnDevice current(index);
    EXPECT_EQ(Gpu::Get().Retain(&context_, index), CUDA_SUCCESS);
    EXPECT_EQ(Gpu::Get().Alloc(&memory, bytes), CUDA_SUCCESS);
    EXPECT_EQ(Gpu::Get().StreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  ~TrainingDevice() {
    {
      // The tests check errors of a broken context themselves.
      const OnDevice current(index);
      Gpu::Get().StreamSynchronize(stream);
      Gpu::Get().StreamDestroy(stream);
      Gpu::Get().Free(memory);
    }
    Gpu::Get().Release(index);
  }
  TrainingDevice(const TrainingDevice&) = delete;
  TrainingDevice& operator=(const TrainingDevice&) = delete;

  void* at(size_t offset) const { return reinterpret_cast<void*>(memory + offset); }
  size_t bytes() const { return bytes_; }
  /// Queues a fill of all bytes on `on`.
  void Fill(unsigned char value, CUstream on) {
    const OnDevice current(index);
    EXPECT_EQ(Gpu::Get().Fill(memory, value, bytes_, on), CUDA_SUCCESS);
  }
  void Upload(const Bytes& bytes) {
    const OnDevice current(index);
    EXPECT_EQ(Gpu::Get().Upload(memory, bytes.data(), bytes.size()), CUDA_SUCCESS);
  }
  Bytes Download() {
    const OnDevice current(index);
    Bytes bytes(bytes_);
    EXPECT_EQ(Gpu::Get().Download(bytes.data(), memory, bytes_), CUDA_SUCCESS);
    return bytes;
  }

  const int index;
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;

 private:
  size_t bytes_;
  CUcontext context_ = nullptr;
};

/// Blocks a stream's work until Open(), at the latest until the destructor.
class Gate {
 public:
  ~Gate() { Open(); }
  void Hold(const TrainingDevice& device, CUstream stream) {
    const OnDevice current(device.index);
    auto held = std::make_unique<std::shared_ptr<State>>(state_);
    CUhostFn pass = [](void* data) {
      const std::unique_ptr<std::shared_ptr<State>> state(
          static_cast<std::shared_ptr<State>*>(data));
      std::unique_lock lock((*state)->mutex);
      (*state)->changed.wait(lock, [&] { return (*state)->open; });
    };
    EXPECT_EQ(Gpu::Get().Launch(stream, pass, held.release()), CUDA_SUCCESS);
  }
  void Open() {
    std::lock_guard lock(state_->mutex);
    state_->open = true;
    state_->changed.notify_all();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();  // the streams' threads leave it later
};

}  // namespace holdfast::cuda
