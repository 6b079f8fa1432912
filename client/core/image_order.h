#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/core/options.h"
#include "storage/format/image.h"

// The order of a state's tensors in its image.
//
// Tensors that are adjacent on a device and in the image are one copy, so the order should be that
// of the addresses. But the ranks of a job must agree on it: shards with the same order share their
// description in the index of a version. Addresses depend on what a rank has allocated before. The
// order is therefore made of what all ranks have in common, the caller's order and the sizes. A
// program usually allocates tensors in the order in which it lists them.

namespace holdfast::client {

/// Returns the place of each tensor, as ImageLayout::Plan takes them. Host tensors have no places,
/// and are ordered by their names. Device tensors follow in the caller's order; or first small,
/// then medium, then large ones, each in the caller's order, as PyTorch's allocator has a separate
/// pool for each kind. The addresses only decide between these two orders: the one with fewer
/// copies wins.
std::vector<uint64_t> PlacesOf(std::span<const TensorSpec> specs,
                               std::span<const TensorMemory> memory);

}  // namespace holdfast::client
