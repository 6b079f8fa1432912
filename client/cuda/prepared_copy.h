#pragma once

#include <cuda.h>

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "client/core/device_copier.h"
#include "client/cuda/copy_schedule.h"
#include "client/cuda/devices.h"
#include "client/cuda/engine_copies.h"

namespace holdfast::cuda {

/// The schedule of some pieces, with the items for the kernel in the memory of each device. An
/// unchanged state has the same pieces at every save, so one object serves many saves.
class PreparedCopy {
 public:
  /// Without `gather`, copy engines copy everything. `devices` outlives the result.
  static std::shared_ptr<const PreparedCopy> Make(const Devices& devices,
                                                  std::span<const holdfast_device_piece> pieces,
                                                  Direction direction, bool gather);
  /// For Make() only.
  explicit PreparedCopy(const Devices& devices) : devices_(devices) {}
  ~PreparedCopy();
  PreparedCopy(const PreparedCopy&) = delete;
  PreparedCopy& operator=(const PreparedCopy&) = delete;

  bool IsFor(std::span<const holdfast_device_piece> pieces, bool gather) const;
  const std::vector<CopyGroup>& groups() const { return schedule_.groups; }
  /// Enqueues a group on its device's stream. The device's context is current.
  CUresult Enqueue(const CopyGroup& group, std::byte* slot, Direction direction) const;

 private:
  CUresult UploadItems();
  /// Enqueues the kernel for the items of a group.
  CUresult EnqueueItems(const CopyGroup& group, const Device& device, std::byte* slot,
                        Direction direction) const;

  const Devices& devices_;
  std::vector<holdfast_device_piece> pieces_;
  bool gather_ = false;
  CopySchedule schedule_;
  std::map<int32_t, CUdeviceptr> items_;
};

}  // namespace holdfast::cuda
