#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "agent/pipeline/restore.h"

namespace holdfast::agent {

/// Chunks of a pinned slot that do not match its seal; of a shard on disk those that cannot be read
/// as well.
Result<std::vector<uint64_t>> BadChunksInMemory(Segment& segment, uint32_t slot);
Result<std::vector<uint64_t>> BadChunksOnDisk(const Volume& volume, const ShardKey& key);

/// Puts the bad chunks of a pinned slot, or of a shard on disk, right in place: each is taken from
/// the other tier of this node or else decoded by the group of the order, checked against the seal,
/// and only then written. What was good is not touched, so that peers go on reading it. OK: the
/// copy is whole and reported so. An error: what is bad stays bad, and a later order may do better;
/// IoError alone says that the disk does not take the bytes. Blocks; run it on a worker.
Status MendInMemory(const RestoreTools& tools, RankSlots& slots, const PrepareShard& prepare,
                    uint32_t slot);
Status MendOnDisk(const RestoreTools& tools, RankSlots* slots, const PrepareShard& prepare);

/// Fills a leased slot with the shard that lies on this node's disk, damaged in places: its good
/// chunks from there, the others decoded. NotFound: the disk has none of it.
Result<ShardSeal> FillFromDisk(
    const RestoreTools& tools, RankSlots& slots, const PrepareShard& prepare,
    const std::function<Result<std::span<std::byte>>(uint64_t image_bytes)>& lease);

}  // namespace holdfast::agent
