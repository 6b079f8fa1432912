#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace holdfast {

/// Images are checksummed in chunks of this many bytes; the last chunk may be shorter.
inline constexpr uint64_t kChunkBytes = 1ULL << 20;

/// Returns the CRC-32C (Castagnoli, as in iSCSI, RFC 3720): Crc32c("123456789") == 0xe3069283.
/// Computed by ISA-L.
uint32_t Crc32c(std::span<const std::byte> bytes);
/// Returns the CRC-32C of a text A followed by `bytes`, where `crc` is the CRC-32C of A. The CRC of
/// no bytes is 0.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

constexpr uint64_t ChunkCount(uint64_t image_bytes) {
  return (image_bytes + kChunkBytes - 1) / kChunkBytes;
}

/// Returns the chunk checksums of an image: ChunkCount(image.size()) entries.
std::vector<uint32_t> ChunkCrcs(std::span<const std::byte> image);

/// Returns a 64-bit digest of an image: the CRC-64 of its length and its chunk checksums. Two
/// replicas of a shard are equal iff their digests are.
uint64_t DigestOf(uint64_t image_bytes, std::span<const uint32_t> chunk_crcs);

inline constexpr uint64_t kNoChunk = ~uint64_t{0};
/// Returns the index of the first chunk of `image` whose CRC-32C differs from the table, or
/// kNoChunk when all match. A table of the wrong length counts as a mismatch at the first index
/// that only one of the two has.
uint64_t FirstBadChunk(std::span<const std::byte> image, std::span<const uint32_t> chunk_crcs);

}  // namespace holdfast
