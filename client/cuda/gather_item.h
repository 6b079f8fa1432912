#pragma once

#include <stdint.h>

namespace holdfast::cuda {

/// A short run of bytes between device memory and a slot, as the kernel reads it.
struct GatherItem {
  uint64_t device = 0;  // address
  uint64_t slot_offset = 0;
  uint32_t bytes = 0;
  uint32_t reserved = 0;
};

/// A longer run is split into items of this many bytes, so that all warps have about as much work.
constexpr uint32_t kGatherItemBytesMax = 16 << 10;

}  // namespace holdfast::cuda
