#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace holdfast {

/// Images are checksummed in chunks of this many bytes; the last may be shorter.
inline constexpr uint64_t kChunkBytes = 1ULL << 20;

/// CRC-32C (Castagnoli) as in iSCSI and RFC 3720: Crc32c("123456789") == 0xe3069283. ISA-L inside.
uint32_t Crc32c(std::span<const std::byte> bytes);
/// The CRC-32C of A followed by `bytes`, from the CRC-32C of A; 0 is that of nothing.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

constexpr uint64_t ChunkCount(uint64_t image_bytes) {
  return (image_bytes + kChunkBytes - 1) / kChunkBytes;
}

/// The chunk checksums of a whole image: ChunkCount(image.size()) entries.
std::vector<uint32_t> ChunkCrcs(std::span<const std::byte> image);

/// 64 bits that stand for a whole image: CRC-64 over the length and the chunk checksums. Two copies
/// of a shard are the same iff their digests are.
uint64_t DigestOf(uint64_t image_bytes, std::span<const uint32_t> chunk_crcs);

/// Index of the first chunk of `image` whose CRC-32C differs from the table; nothing when all
/// match. A table that is too short or too long counts as a mismatch at the first index that only
/// one of the two has.
inline constexpr uint64_t kNoChunk = ~uint64_t{0};
uint64_t FirstBadChunk(std::span<const std::byte> image, std::span<const uint32_t> chunk_crcs);

}  // namespace holdfast
