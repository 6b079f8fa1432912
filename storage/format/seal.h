#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/life.h"
#include "storage/format/checksum.h"

// The sidecar of a shard: identity, length, chunk checksums and, on disk, its parts. A shard is
// valid only with its seal: data without a seal was never published. docs/formats/seal.md is the
// full description.

namespace holdfast {

inline constexpr uint32_t kSealFormat = 2;
inline constexpr uint64_t kSealBytesMax = 256ULL << 20;
inline constexpr uint32_t kPartsMax = 64;

/// One file of a shard on one device: `data_offset` bytes that do not belong to the image, then the
/// image bytes [image_begin, image_end), then nothing. A shard in one part is the image:
/// data_offset and image_begin are 0. With several parts, each part begins with its own header, and
/// part 0 begins with the image's data region.
struct SealPart {
  uint64_t image_begin = 0;
  uint64_t image_end = 0;
  uint64_t data_offset = 0;
  uint64_t file_bytes = 0;
  uint32_t header_crc = 0;  // CRC-32C of the part file's first data_offset bytes
  bool operator==(const SealPart&) const = default;
};

struct ShardSeal {
  ShardIdentity identity;
  uint64_t image_bytes = 0;
  std::vector<uint32_t> chunk_crcs;  // ChunkCount(image_bytes) entries
  std::vector<SealPart> parts;       // empty in memory; one per file on disk
  std::string image_header;          // only with several parts: the image's own header bytes
  int64_t wall_nanos = 0;            // when it was sealed; for display
  /// The life in which the version was numbered. It is not part of the shard's identity: see
  /// docs/formats/seal.md.
  LifeId life = {};

  uint64_t digest() const { return DigestOf(image_bytes, chunk_crcs); }
  bool operator==(const ShardSeal&) const = default;
};

/// Returns a binary little-endian record that ends in its own CRC-32C. EncodeSeal does not validate
/// the seal as DecodeSeal does.
std::string EncodeSeal(const ShardSeal& seal);
/// Parses an untrusted record; every count is checked before its use. DataLoss for torn, flipped,
/// truncated or invalid bytes, for a chunk table that does not match the length, and for parts that
/// do not cover the image exactly. Unsupported for an intact record of a newer format.
Result<ShardSeal> DecodeSeal(std::span<const std::byte> bytes);

/// Returns OK if the seal has the digest of the committed replica; 0: any. DataLoss otherwise.
Status CheckDigest(const ShardSeal& seal, uint64_t committed);

}  // namespace holdfast
