#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "client/core/device_copier.h"
#include "client/cuda/gather_item.h"

namespace holdfast::cuda {

constexpr size_t kStreamsPerDevice = 2;

/// A run that is contiguous on the device and in the slot; one copy of a copy engine.
struct CopyRun {
  uint64_t device = 0;  // address
  uint64_t slot_offset = 0;
  uint64_t bytes = 0;
};

/// Consecutive pieces on one device that are enqueued together and followed by one event. Large
/// enough that the cost of the calls is negligible, small enough to show progress.
struct CopyGroup {
  size_t begin = 0;  // pieces [begin, end)
  size_t end = 0;
  int32_t device_index = 0;
  uint64_t bytes = 0;
  size_t stream = 0;  // of the device, below kStreamsPerDevice
  // The runs for a copy engine and the items for the kernel, as indices into the schedule.
  size_t runs_begin = 0;
  size_t runs_end = 0;
  size_t items_begin = 0;
  size_t items_end = 0;

  /// Returns the number of operations in the driver's queue: copies, the kernel and the event.
  size_t operations() const {
    return runs_end - runs_begin + (items_begin < items_end ? 1 : 0) + 1;
  }
};

/// How the pieces of a state are copied. Every byte of every piece is in one run or item.
struct CopySchedule {
  std::vector<CopyGroup> groups;
  std::vector<CopyRun> runs;
  std::vector<GatherItem> items;
};

struct ScheduleLimits {
  uint64_t group_bytes_max = 0;
  size_t group_pieces_max = 0;
  size_t group_runs_max = 0;   // of copy engines; those that are too short at first do not count
  size_t gather_runs_min = 0;  // a group with fewer short runs has no items
};
/// Returns limits for pieces of `bytes` in total: about 16 groups, of at most 64 MiB. The launch of
/// the kernel may wait for a multiprocessor, so it is worth it only for many runs.
ScheduleLimits LimitsFor(uint64_t bytes);

/// What a schedule depends on besides the pieces.
struct ScheduleRules {
  ScheduleLimits limits;
  /// Returns the size below which runs on a device become items.
  std::function<uint64_t(int32_t device_index)> gather_below;
  /// Returns whether two addresses are in one allocation: a copy must not leave its allocation.
  std::function<bool(int32_t device_index, uint64_t, uint64_t)> same_allocation;
};

/// Merges pieces that are contiguous on both sides and in one allocation. Short runs become items.
/// A group ends at a change of device and at the limits; it does not split a piece.
CopySchedule MakeSchedule(std::span<const holdfast_device_piece> pieces,
                          const ScheduleRules& rules);

}  // namespace holdfast::cuda
