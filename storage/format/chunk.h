#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "storage/format/seal.h"

// The check of a chunk against the seal of its shard. Everything that reads chunks uses it.

namespace holdfast {

/// Returns the length of chunk `index`, which the image must have.
inline uint64_t ChunkBytes(const ShardSeal& seal, uint64_t index) {
  return std::min(kChunkBytes, seal.image_bytes - index * kChunkBytes);
}

/// Returns whether both seals describe the same bytes, wherever these are stored.
inline bool SameImage(const ShardSeal& a, const ShardSeal& b) {
  return a.image_bytes == b.image_bytes && a.chunk_crcs == b.chunk_crcs;
}

/// Returns whether `bytes` are chunk `index` of the sealed image.
bool IsChunk(const ShardSeal& seal, uint64_t index, std::span<const std::byte> bytes);

/// Returns the error for a chunk that IsChunk() rejects. `where` names the place of the bytes: "in
/// /data/lm/v1-60/rank-2.safetensors".
Status BadChunkError(const ShardSeal& seal, uint64_t index, std::string_view where = "");

}  // namespace holdfast
