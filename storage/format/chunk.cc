#include "storage/format/chunk.h"

#include <fmt/format.h>

#include "storage/format/checksum.h"

namespace holdfast {

bool IsChunk(const ShardSeal& seal, uint64_t index, std::span<const std::byte> bytes) {
  return index < seal.chunk_crcs.size() && bytes.size() == ChunkBytes(seal, index) &&
         Crc32c(bytes) == seal.chunk_crcs[index];
}

Status BadChunkError(const ShardSeal& seal, uint64_t index, std::string_view where) {
  const uint64_t begin = index * kChunkBytes;
  const uint64_t end = std::min(seal.image_bytes, begin + kChunkBytes);
  return DataLossError(fmt::format(
      "{}{}{}: chunk {} (image bytes {}-{}) does not match its checksum",
      ToString(seal.identity.key()), where.empty() ? "" : " ", where, index, begin, end - 1));
}

}  // namespace holdfast
