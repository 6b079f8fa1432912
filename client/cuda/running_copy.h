#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/cuda/devices.h"
#include "client/cuda/prepared_copy.h"

namespace holdfast::cuda {

/// The copies of one save, device → slot.
///
/// Only a part of the copies is queued at a time. A thread that queues work on a full queue of the
/// driver waits inside the driver, and while it does so, no other thread of the process can queue
/// work: the training would stop until the copies have run.
class RunningCopy {
 public:
  /// `marks`: the events after which the tensors may be read. The arguments outlive the object.
  RunningCopy(const Devices& devices, std::shared_ptr<const PreparedCopy> prepared,
              std::vector<CUevent> marks, std::span<const holdfast_device_piece> pieces,
              std::byte* slot);
  /// Waits for the copies that are queued.
  ~RunningCopy();
  RunningCopy(const RunningCopy&) = delete;
  RunningCopy& operator=(const RunningCopy&) = delete;

  /// Queues the first groups, after the marks.
  CUresult Start();
  /// Waits until the first `wanted` pieces are in the slot, and queues further groups meanwhile.
  /// `done` gets the number of pieces that are.
  Status Wait(size_t wanted, size_t* done);
  /// Returns whether all groups are queued.
  bool is_queued() const { return queued_ == events_.size(); }
  const Devices& devices() const { return devices_; }
  /// Makes work that is queued on `stream` from now on begin after the copies that are queued.
  CUresult Guard(CUstream stream) const;

 private:
  /// The groups of one device, in order.
  struct Queue {
    std::vector<size_t> groups;
    size_t next = 0;    // the first that is not queued
    size_t oldest = 0;  // the first that may still run
    // Of the groups from `oldest` to `next`.
    uint64_t bytes = 0;
    size_t operations = 0;
    std::array<CUevent, kStreamsPerDevice> latest{};
  };
  /// The bytes of a piece that are read twice.
  struct Sample {
    const std::byte* first = nullptr;   // in the slot
    const std::byte* second = nullptr;  // among the device's samples
    size_t bytes = 0;
  };

  /// Queues groups of all devices, up to the limits.
  CUresult Fill();
  CUresult FillQueue(int32_t device_index, Queue& queue);
  CUresult EnqueueGroup(const Device& device, size_t group, Queue& queue);
  /// Queues a second read of the beginnings of some of a device's pieces, after all of them are
  /// copied.
  CUresult EnqueueSamples(const Device& device, const Queue& queue, CUstream stream);
  Status CheckSamples() const;

  const Devices& devices_;
  const std::shared_ptr<const PreparedCopy> prepared_;
  const std::vector<CUevent> marks_;
  const std::span<const holdfast_device_piece> pieces_;
  std::byte* const slot_;
  std::map<int32_t, Queue> queues_;
  std::vector<CUevent> events_;      // one for each group, recorded after its copies
  std::atomic<size_t> queued_ = 0;   // groups
  size_t complete_ = 0;              // groups from the front whose event is known to be complete
  CUresult failure_ = CUDA_SUCCESS;  // the first one; no more groups are queued after it
  std::vector<Sample> samples_;
};

}  // namespace holdfast::cuda
