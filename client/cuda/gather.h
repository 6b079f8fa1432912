#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/cuda/driver.h"
#include "client/cuda/engine_copies.h"

namespace holdfast::cuda {

/// The runs for which the kernel is faster than a copy engine: those of fewer bytes.
struct GatherLimits {
  uint64_t to_host = 0;
  uint64_t to_device = 0;
};

/// The kernel of gather.cu on one device. Used with the device's context current.
class Gather {
 public:
  /// Loads the kernel, and measures for which runs it is faster. The result of the measurement is
  /// kept for later calls with the same device. Returns nullptr where the plugin was built without
  /// nvcc, or where a copy engine is always faster.
  static std::unique_ptr<Gather> Load(const Driver& driver, CUdevice device, CUstream stream);
  ~Gather();
  Gather(const Gather&) = delete;
  Gather& operator=(const Gather&) = delete;

  uint64_t below(Direction direction) const {
    return direction == Direction::kToHost ? limits_.to_host : limits_.to_device;
  }
  /// Enqueues the copies of `count` items, which are in device memory. `slot` is the device's
  /// address of a registered slot.
  CUresult Launch(CUdeviceptr items, size_t count, CUdeviceptr slot, Direction direction,
                  CUstream stream) const;

 private:
  explicit Gather(const Driver& driver) : driver_(driver) {}
  CUresult Measure(CUstream stream);

  const Driver& driver_;
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
  GatherLimits limits_;
};

}  // namespace holdfast::cuda
