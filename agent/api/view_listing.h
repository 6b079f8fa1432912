#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "storage/base/status.h"

// What a view shows of its version: for each shard the header of its image and its extra state.
// docs/formats/view-listing.md.

namespace holdfast::agent {

/// One shard, as spans of somebody else's memory.
struct ListedShard {
  uint32_t rank = 0;
  bool near = false;  // on this node, in memory or on disk
  uint64_t image_bytes = 0;
  std::span<const std::byte> header;  // the image's first bytes, up to the data region
  std::span<const std::byte> extras;  // its last bytes
};

/// No listing is longer; a version whose headers are cannot be seen whole.
inline constexpr uint64_t kListingBytesMax = 1ULL << 31;

uint64_t ListingBytes(std::span<const ListedShard> shards);
/// `into` has ListingBytes().
void WriteListing(std::span<const ListedShard> shards, std::span<std::byte> into);
/// The shards, as spans of `listing`. DataLoss for anything WriteListing would not write.
Result<std::vector<ListedShard>> ParseListing(std::span<const std::byte> listing);

}  // namespace holdfast::agent
