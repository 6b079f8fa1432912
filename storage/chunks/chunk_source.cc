#include "storage/chunks/chunk_source.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast {

Status CheckWanted(const ShardKey& key, const ShardSeal& seal,
                   std::span<const WantedChunk> chunks) {
  if (seal.identity.key() != key) {
    return InvalidArgumentError(fmt::format("cannot read {} with the seal of {}", ToString(key),
                                            ToString(seal.identity.key())));
  }
  for (const WantedChunk& chunk : chunks) {
    if (chunk.index < seal.chunk_crcs.size() &&
        chunk.into.size() == ChunkBytes(seal, chunk.index)) {
      continue;
    }
    return InvalidArgumentError(fmt::format("cannot read chunk {} of {} chunks into {} bytes",
                                            chunk.index, seal.chunk_crcs.size(),
                                            chunk.into.size()));
  }
  return Status::Ok();
}

std::vector<WantedChunk> ChunksOf(const ShardSeal& seal, uint64_t first, std::span<std::byte> into,
                                  uint64_t slack) {
  std::vector<WantedChunk> chunks;
  chunks.reserve(ChunkCount(into.size()));
  for (uint64_t index = first; !into.empty(); ++index) {
    const auto bytes = std::min<uint64_t>(ChunkBytes(seal, index), into.size());
    chunks.push_back({index, into.first(bytes)});
    into = into.subspan(bytes);
  }
  if (!chunks.empty()) chunks.back().slack = slack;
  return chunks;
}

Status ReadRuns(std::span<WantedChunk> chunks, const RunReader& read) {
  Status damage;
  for (size_t i = 0; i < chunks.size();) {
    if (chunks[i].done) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    while (end < chunks.size() && !chunks[end].done &&
           chunks[end].index == chunks[end - 1].index + 1) {
      ++end;
    }
    const Status failed = read(chunks.subspan(i, end - i));
    // A place may drop a replica once it is known to be damaged. The damage is then the reason.
    if (!failed.ok() && failed.code() != ErrorCode::kDataLoss) return damage.ok() ? failed : damage;
    if (damage.ok()) damage = failed;
    while (i < end && chunks[i].done) ++i;
    if (i < end) ++i;  // the bad chunk
  }
  return damage;
}

}  // namespace holdfast
