#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/cuda/copy_schedule.h"
#include "client/cuda/driver.h"
#include "client/cuda/gather.h"

namespace holdfast::cuda {

/// Makes a context current for a scope, and then restores the caller's. The driver refuses most
/// calls on a thread without a current context, even when an event or a stream implies one. The
/// scope is in the relaxed capture mode: otherwise waiting for an event or pinning memory would end
/// a capture that the program has begun on another thread.
class CurrentContext {
 public:
  CurrentContext(const Driver& driver, CUcontext context) : driver_(driver) {
    relaxed_ = driver_.ExchangeCaptureMode(&capture_mode_) == CUDA_SUCCESS;
    pushed_ = context != nullptr && driver_.CtxPush(context) == CUDA_SUCCESS;
  }
  ~CurrentContext() {
    CUcontext popped = nullptr;
    if (pushed_) driver_.CtxPop(&popped);
    if (relaxed_) driver_.ExchangeCaptureMode(&capture_mode_);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
  bool relaxed_ = false;
  CUstreamCaptureMode capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

/// Returns whether work queued on `stream` becomes part of a graph, or may: while another stream is
/// captured, the driver does not report the state of the default stream.
bool IsCaptured(const Driver& driver, CUstream stream);

/// A copy is torn if its tensors change during the copy. To detect this, the first bytes of up to
/// kSamplesMax pieces of each device are read a second time after the copy.
constexpr size_t kSamplesMax = 32;
constexpr size_t kSampleBytes = 256;

struct Device {
  CUdevice device = 0;
  CUcontext context = nullptr;
  /// Groups alternate between them, so that the beginning of one hides the end of another.
  std::array<CUstream, kStreamsPerDevice> streams{};
  std::byte* samples = nullptr;    // pinned; used by one copy at a time
  std::unique_ptr<Gather> gather;  // nullptr: copy engines copy everything
};

/// The devices of a client: their primary contexts, copy streams and memory for samples.
class Devices {
 public:
  explicit Devices(const Driver& driver) : driver_(driver) {}
  /// Waits for queued copies.
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  /// Retains the device's primary context, which the CUDA runtime and torch use too, and creates
  /// the rest.
  CUresult Open(int32_t index);

  const Driver& driver() const { return driver_; }
  const std::map<int32_t, Device>& all() const { return all_; }
  /// Returns nullptr for a device that is not open.
  const Device* Find(int32_t index) const;
  CUcontext first() const { return all_.begin()->second.context; }
  /// Returns the context of `stream`. For a default stream, which has one handle for all devices:
  /// the contexts of all devices.
  std::vector<CUcontext> ContextsOf(CUstream stream) const;
  void DestroyEvents(const std::vector<CUevent>& events) const;
  /// Waits until no copy runs on any device. Returns the first error.
  CUresult Drain() const;

 private:
  const Driver& driver_;
  std::map<int32_t, Device> all_;
};

}  // namespace holdfast::cuda
