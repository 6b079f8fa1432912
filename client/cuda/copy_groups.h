#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/core/device_copier.h"

namespace holdfast::cuda {

/// A run of consecutive pieces on one device that is enqueued with one call and followed by one
/// event. Large enough that the cost of the call is negligible, small enough to show progress.
struct CopyGroup {
  size_t begin = 0;  // pieces [begin, end)
  size_t end = 0;
  int32_t device_index = 0;
};

/// Begins a new group at a change of device, at `bytes_max` and at `pieces_max`. Does not split a
/// piece; every piece is in one group.
std::vector<CopyGroup> GroupPieces(std::span<const holdfast_device_piece> pieces,
                                   uint64_t bytes_max, size_t pieces_max);

}  // namespace holdfast::cuda
