#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

// The listing of a version reader: the header of the image and the extra state of each shard of the
// version. Format: docs/formats/version-listing.md.

namespace holdfast::agent {

/// One shard, as spans of memory that the caller owns.
struct ListedShard {
  uint32_t rank = 0;
  bool near = false;  // on this node, in memory or on disk
  uint64_t image_bytes = 0;
  std::span<const std::byte> header;  // the image's first bytes, up to the data region
  std::span<const std::byte> extras;  // its last bytes
};

/// The maximum length of a listing. A version whose headers need more has no version reader.
inline constexpr uint64_t kListingBytesMax = 1ULL << 31;

/// Returns the length of the listing of `shards`.
uint64_t ListingBytes(std::span<const ListedShard> shards);
/// Writes the listing of `shards` to `into`, which has ListingBytes(shards) bytes.
void WriteListing(std::span<const ListedShard> shards, std::span<std::byte> into);
/// Returns the shards of a listing, as spans of `listing`. DataLoss for anything that
/// WriteListing() would not write.
Result<std::vector<ListedShard>> ParseListing(std::span<const std::byte> listing);

}  // namespace holdfast::agent
