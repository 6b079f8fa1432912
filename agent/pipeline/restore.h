#pragma once

#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/rank_slots.h"
#include "agent/pipeline/restore_tools.h"

namespace holdfast::agent {

/// Brings a rank's shard or a parity shard into its slots and verifies every byte. The source
/// is the slot that already has the shard, this node's disk, another agent or the parity group. The
/// group also repairs the bad chunks of a damaged replica on this node. On success the slot is
/// sealed and reported, and a rank's slot is held for the restore. A damaged source is reported;
/// the error is then DataLoss and names the damage. Blocks; run it on a worker.
Status BringIntoMemory(const RestoreTools& tools, RankSlots& slots, const PrepareTask& prepare);

/// Restores the shard to this node's disks: from the rank's memory on this node (`slots`; nullptr
/// when the rank has none), or decoded by its parity group. A replica on disk with bad chunks is
/// repaired in place; one that cannot be repaired in place is quarantined first. On success the
/// shard is durable and reported. Blocks; run it on a worker.
Status BringToDisk(const RestoreTools& tools, RankSlots* slots, const PrepareTask& prepare);

/// Verifies all chunks of a pinned slot. DataLoss names the first bad one.
Status VerifySlot(Segment& segment, uint32_t slot);

}  // namespace holdfast::agent
