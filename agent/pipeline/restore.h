#pragma once

#include <functional>

#include "agent/peers/transport.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/rank_slots.h"
#include "storage/base/clock.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// What a restore works with; all outlive it. Thread-safe members only.
struct RestoreTools {
  Volume& volume;
  ShardFetcher& fetcher;
  CoordinatorLink& link;
  Clock& clock;
  PeerTransport& peers;
  PeerSource& peer_source;         // of this node
  std::string node;                // this node's name
  std::function<bool()> stopping;  // ends waiting for a slot
};

/// Brings the shard into the rank's memory and verifies every byte: from the slot that already
/// holds it, from this node's disk, from another agent, or decoded by its parity group. On success
/// the slot is sealed, reported and held for the restore. A damaged source is taken out of service
/// (slot freed, disk shard quarantined) and reported Gone; the error is then DataLoss and says what
/// is damaged. Blocks; run it on a worker.
Status BringIntoMemory(const RestoreTools& tools, RankSlots& slots, const PrepareShard& prepare);

/// Checks all chunks of a pinned slot. DataLoss names the first bad one.
Status VerifySlot(Segment& segment, uint32_t slot);

}  // namespace holdfast::agent
