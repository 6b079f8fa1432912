#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/core/device_copier.h"

namespace holdfast::cuda {

/// A run of consecutive pieces on one device that is enqueued with one call and followed by one
/// event: large enough that the cost of a call does not count, small enough that progress shows.
struct CopyGroup {
  size_t begin = 0;  // pieces [begin, end)
  size_t end = 0;
  int32_t device_index = 0;
};

/// Cuts at a change of device, at `bytes_max` and at `pieces_max`. No piece is left out or split.
std::vector<CopyGroup> GroupPieces(std::span<const holdfast_device_piece> pieces,
                                   uint64_t bytes_max, size_t pieces_max);

}  // namespace holdfast::cuda
