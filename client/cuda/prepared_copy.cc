#include "client/cuda/prepared_copy.h"

#include <cstring>

namespace holdfast::cuda {
namespace {
/// Answers whether addresses are in one allocation. Keeps the last allocation, since the driver
/// needs about 1 µs for an answer.
class Allocations {
 public:
  explicit Allocations(const Devices& devices) : devices_(devices) {}

  bool AreInOne(int32_t device_index, uint64_t one, uint64_t other) {
    if (device_index != device_index_ || !Contains(one)) Find(device_index, one);
    return Contains(one) && Contains(other);
  }

 private:
  bool Contains(uint64_t address) const { return base_ <= address && address - base_ < bytes_; }
  void Find(int32_t device_index, uint64_t address) {
    device_index_ = device_index;
    base_ = 0;
    bytes_ = 0;
    const Device* device = devices_.Find(device_index);
    if (device == nullptr || devices_.driver().GetAddressRange == nullptr) return;
    CurrentContext current(devices_.driver(), device->context);
    if (devices_.driver().GetAddressRange(&base_, &bytes_, address) != CUDA_SUCCESS) bytes_ = 0;
  }

  const Devices& devices_;
  int32_t device_index_ = -1;
  CUdeviceptr base_ = 0;
  size_t bytes_ = 0;
};
}  // namespace

std::shared_ptr<const PreparedCopy> PreparedCopy::Make(
    const Devices& devices, std::span<const holdfast_device_piece> pieces, Direction direction,
    bool gather) {
  auto made = std::make_shared<PreparedCopy>(devices);
  made->pieces_.assign(pieces.begin(), pieces.end());
  made->gather_ = gather;
  uint64_t bytes = 0;
  for (const holdfast_device_piece& piece : pieces) bytes += piece.bytes;
  Allocations allocations(devices);
  const auto plan = [&](bool use_kernel) {
    made->schedule_ =
        MakeSchedule(pieces, {.limits = LimitsFor(bytes),
                              .gather_below = [&](int32_t index) -> uint64_t {
                                const Device* device = devices.Find(index);
                                if (!use_kernel || device == nullptr || !device->gather) return 0;
                                return device->gather->below(direction);
                              },
                              .same_allocation =
                                  [&](int32_t index, uint64_t one, uint64_t other) {
                                    return allocations.AreInOne(index, one, other);
                                  }});
  };
  plan(gather);
  // Without memory for the items, copy engines copy everything.
  if (!made->schedule_.items.empty() && made->UploadItems() != CUDA_SUCCESS) plan(false);
  return made;
}

PreparedCopy::~PreparedCopy() {
  for (const auto& [index, items] : items_) {
    CurrentContext current(devices_.driver(), devices_.Find(index)->context);
    devices_.driver().MemFree(items);
  }
}

bool PreparedCopy::IsFor(std::span<const holdfast_device_piece> pieces, bool gather) const {
  return gather == gather_ && pieces.size_bytes() == pieces_.size() * sizeof pieces_[0] &&
         std::memcmp(pieces.data(), pieces_.data(), pieces.size_bytes()) == 0;
}

CUresult PreparedCopy::UploadItems() {
  const Driver& driver = devices_.driver();
  const size_t bytes = schedule_.items.size() * sizeof(GatherItem);
  for (const auto& [index, device] : devices_.all()) {
    if (device.gather == nullptr) continue;
    CurrentContext current(driver, device.context);
    CUresult result = driver.MemAlloc(&items_[index], bytes);
    if (result != CUDA_SUCCESS) {
      items_.erase(index);
      return result;
    }
    result = driver.CopyToDevice(items_[index], schedule_.items.data(), bytes, device.streams[0]);
    if (result == CUDA_SUCCESS) result = driver.StreamSynchronize(device.streams[0]);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult PreparedCopy::EnqueueItems(const CopyGroup& group, const Device& device, std::byte* slot,
                                    Direction direction) const {
  const size_t count = group.items_end - group.items_begin;
  if (count == 0) return CUDA_SUCCESS;
  CUdeviceptr on_device = 0;
  const CUresult result = devices_.driver().HostGetDevicePointer(&on_device, slot, 0);
  if (result != CUDA_SUCCESS) return result;
  const CUdeviceptr first = items_.at(group.device_index) + group.items_begin * sizeof(GatherItem);
  return device.gather->Launch(first, count, on_device, direction, device.streams[group.stream]);
}

CUresult PreparedCopy::Enqueue(const CopyGroup& group, std::byte* slot, Direction direction) const {
  const Device* device = devices_.Find(group.device_index);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const CUresult result = EnqueueItems(group, *device, slot, direction);
  if (result != CUDA_SUCCESS) return result;
  const auto runs =
      std::span(schedule_.runs).subspan(group.runs_begin, group.runs_end - group.runs_begin);
  const auto enqueue = device->gather == nullptr ? EnqueueBatch : EnqueueRuns;
  return enqueue(devices_.driver(), runs, slot, direction, device->streams[group.stream]);
}

}  // namespace holdfast::cuda
