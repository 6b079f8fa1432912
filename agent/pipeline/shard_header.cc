#include "agent/pipeline/shard_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/api/segment_layout.h"
#include "storage/format/chunk.h"

namespace holdfast::agent {
namespace {
/// Reads the image bytes [begin, end); fetches the complete chunks that contain them.
Status ReadBytes(const ReadImage& read, uint64_t image_bytes, uint64_t begin, uint64_t end,
                 std::vector<std::byte>* into) {
  const uint64_t first = begin / kChunkBytes * kChunkBytes;
  const uint64_t last = std::min(RoundUp(end, kChunkBytes), image_bytes);
  into->resize(last - first);
  HOLDFAST_RETURN_IF_ERROR(read(first, *into));
  into->erase(into->begin(), into->begin() + static_cast<ptrdiff_t>(begin - first));
  into->resize(end - begin);
  into->shrink_to_fit();
  return Status::Ok();
}
}  // namespace

Result<std::vector<std::byte>> ReadImageBytes(const ShardSeal& seal, const ReadImage& read,
                                              uint64_t begin, uint64_t end) {
  std::vector<std::byte> bytes;
  HOLDFAST_RETURN_IF_ERROR(ReadBytes(read, seal.image_bytes, begin, end, &bytes));
  return bytes;
}

Result<ShardHeader> ReadShardHeader(const ShardSeal& seal, const ReadImage& read,
                                    ParsedImage* image) {
  const ShardKey key = seal.identity.key();
  ShardHeader shard;
  shard.image_bytes = seal.image_bytes;
  if (shard.image_bytes < sizeof(uint64_t)) {
    return Fail(DataLossError(
        fmt::format("{}: an image of {} bytes has no header", ToString(key), shard.image_bytes)));
  }
  // Most headers fit into the first chunk.
  std::vector<std::byte>& header = shard.header;
  HOLDFAST_RETURN_IF_ERROR(
      ReadBytes(read, shard.image_bytes, 0, std::min(kChunkBytes, shard.image_bytes), &header));
  HOLDFAST_ASSIGN_OR_RETURN(const uint64_t header_bytes, HeaderBytes(header, shard.image_bytes));
  if (header_bytes > header.size()) {
    HOLDFAST_RETURN_IF_ERROR(ReadBytes(read, shard.image_bytes, 0, header_bytes, &header));
  }
  header.resize(header_bytes);
  header.shrink_to_fit();
  HOLDFAST_ASSIGN_OR_RETURN(ParsedImage parsed, ParseImage(header, shard.image_bytes));
  if (parsed.identity != seal.identity) {
    return Fail(DataLossError("the image header of " + ToString(key) + " names " +
                              ToString(parsed.identity.key())));
  }
  if (!parsed.extras.empty()) {
    const uint64_t begin = parsed.data_offset + parsed.extras.front().begin;
    HOLDFAST_RETURN_IF_ERROR(
        ReadBytes(read, shard.image_bytes, begin, shard.image_bytes, &shard.extras));
  }
  if (image != nullptr) *image = std::move(parsed);
  return shard;
}

}  // namespace holdfast::agent
