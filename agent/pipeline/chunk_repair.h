#pragma once

#include <cstdint>
#include <vector>

#include "agent/pipeline/rank_slots.h"
#include "agent/pipeline/restore_tools.h"

namespace holdfast::agent {

/// Returns the chunks of a pinned slot that do not match its seal. For a shard on disk, unreadable
/// chunks also count as bad.
Result<std::vector<uint64_t>> BadChunksInMemory(Segment& segment, uint32_t slot);
Result<std::vector<uint64_t>> BadChunksOnDisk(const Volume& volume, const ShardKey& key);

/// Replaces the bad chunks of a pinned slot, or of a shard on disk, in place. A good chunk is taken
/// from the other tier of this node, or else decoded by the group that `prepare` names. Good chunks
/// are not touched, and peers keep reading them. OK: the replica is intact and reported as stored.
/// On an error the remaining bad chunks stay bad, and a later directive may succeed. IoError is the
/// exception: the device does not keep the written bytes, or bytes outside the chunks are damaged.
/// Blocks; run it on a worker.
Status RepairInMemory(const RestoreTools& tools, RankSlots& slots, const PrepareTask& prepare,
                      uint32_t slot);
Status RepairOnDisk(const RestoreTools& tools, const PrepareTask& prepare);

}  // namespace holdfast::agent
