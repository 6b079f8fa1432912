#include "storage/volume/chunk_rewrite.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/crash_point.h"
#include "storage/format/chunk.h"
#include "storage/volume/layout.h"
#include "storage/volume/shard_reader.h"

namespace holdfast {
namespace {
// The bytes that are written and synced at a time.
constexpr uint64_t kPieceBytes = 256ULL << 10;
}  // namespace

Status RewriteChunk(const DirectoryList& dirs, const ShardSeal& seal, uint64_t index,
                    std::span<const std::byte> bytes) {
  const uint64_t begin = index * kChunkBytes;
  if (!IsChunk(seal, index, bytes)) {
    return InvalidArgumentError(fmt::format("the {} given bytes are not chunk {} of {}",
                                            bytes.size(), index, ToString(seal.identity.key())));
  }
  const auto count = static_cast<uint32_t>(seal.parts.size());
  const std::string version = VersionPath(seal.identity.job, seal.identity.version);
  for (uint32_t part = 0; part < count; ++part) {
    const SealPart& where = seal.parts[part];
    const std::string path = version + "/" + PartName(seal.identity.rank, part, count);
    const uint64_t end = std::min(begin + bytes.size(), where.image_end);
    for (uint64_t at = std::max(begin, where.image_begin); at < end; at += kPieceBytes) {
      const auto piece = bytes.subspan(at - begin, std::min(kPieceBytes, end - at));
      const uint64_t offset = at - where.image_begin + where.data_offset;
      HOLDFAST_RETURN_IF_ERROR(dirs[part]->Overwrite(path, offset, piece));
      HOLDFAST_CRASH_POINT("volume.mid_rewrite");
    }
  }
  // Read the chunk again, to detect a device that loses or changes the bytes.
  HOLDFAST_ASSIGN_OR_RETURN(const auto chunks, OpenShardChunks(dirs, seal));
  HOLDFAST_ASSIGN_OR_RETURN([[maybe_unused]] const auto again, chunks->Read(index));
  return Status::Ok();
}

}  // namespace holdfast
