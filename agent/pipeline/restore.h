#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/peers/transport.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/rank_slots.h"
#include "storage/base/clock.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// A shard being read out of memory for somebody else.
class ShardReader {
 public:
  virtual ~ShardReader() = default;
  virtual const ShardSeal& seal() const = 0;
  /// Copies chunk `index`, into.size() bytes long, out and checks it: DataLoss when it does not
  /// match the seal.
  virtual Status CopyChunk(uint64_t index, std::span<std::byte> into) = 0;
  /// The same, at its own length.
  virtual Status ReadChunk(uint64_t index, std::vector<std::byte>* into) = 0;
};

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
  /// A copy is not what it was sealed as: it is reported, and stays, for its good chunks, where its
  /// group can make use of them.
  std::function<void(const ShardKey& key, Tier tier, const Status& how)> damaged;
  /// The same for one that is of no use to anybody: it is taken out of service and reported Gone.
  std::function<void(const ShardKey& key, Tier tier, const Status& how)> lost;
  /// A copy is as it was sealed, or is again.
  std::function<void(const ShardIdentity& identity, Tier tier, const ShardSeal& seal)> whole;
  /// A shard in this node's memory, also in what was set aside.
  std::function<Result<std::unique_ptr<ShardReader>>(const ShardKey& key)> in_memory;
};

/// Brings the shard, a rank's or a node's parity, into its memory and verifies every byte: from the
/// slot that already holds it, from this node's disk, from another agent, or decoded by its parity
/// group, which then mends what a damaged copy here has wrong. On success the slot is sealed and
/// reported, and a rank's is held for the restore. A damaged source is reported; the error is then
/// DataLoss and says what is damaged. Blocks; run it on a worker.
Status BringIntoMemory(const RestoreTools& tools, RankSlots& slots, const PrepareShard& prepare);

/// Puts the shard back onto this node's disks: from its memory here, if it has any (`slots` may be
/// nullptr), or decoded by its parity group. What is there and bad in places is mended where it
/// lies; what cannot be is quarantined first. On success it is durable and reported. Blocks; run it
/// on a worker.
Status BringToDisk(const RestoreTools& tools, RankSlots* slots, const PrepareShard& prepare);

/// Checks all chunks of a pinned slot. DataLoss names the first bad one.
Status VerifySlot(Segment& segment, uint32_t slot);

}  // namespace holdfast::agent
