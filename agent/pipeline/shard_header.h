#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "storage/format/image.h"
#include "storage/format/seal.h"

namespace holdfast::agent {

/// The header and the extra state of one shard.
struct ShardHeader {
  uint64_t image_bytes = 0;
  std::vector<std::byte> header;  // the image's first bytes, up to the data region
  std::vector<std::byte> extras;  // its last bytes
};

/// Reads image bytes from an offset on; the offset and the end are those of chunks.
using ReadImage = std::function<Status(uint64_t offset, std::span<std::byte> into)>;

/// Reads the bytes [begin, end) of the image with this seal.
Result<std::vector<std::byte>> ReadImageBytes(const ShardSeal& seal, const ReadImage& read,
                                              uint64_t begin, uint64_t end);

/// Reads the header and the extra state of the shard with this seal, and checks that the header is
/// that of the shard. `image` gets the parsed header when it is not null.
Result<ShardHeader> ReadShardHeader(const ShardSeal& seal, const ReadImage& read,
                                    ParsedImage* image = nullptr);

}  // namespace holdfast::agent
