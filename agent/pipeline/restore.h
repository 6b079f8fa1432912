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

/// A reader of a shard in this node's memory. Keeps the memory mapped and the slot pinned.
class ShardReader {
 public:
  virtual ~ShardReader() = default;
  virtual const ShardSeal& seal() const = 0;
  /// Copies chunk `index` into `into`, which has the chunk's length, and checks it. DataLoss: the
  /// chunk does not match the seal.
  virtual Status CopyChunk(uint64_t index, std::span<std::byte> into) = 0;
  /// As CopyChunk; resizes `into` to the chunk's length.
  virtual Status ReadChunk(uint64_t index, std::vector<std::byte>* into) = 0;
};

/// The node's facilities that a restore needs. All outlive the restore and are thread-safe.
struct RestoreTools {
  Volume& volume;
  ShardFetcher& fetcher;
  CoordinatorLink& link;
  Clock& clock;
  PeerTransport& peers;
  PeerSource& peer_source;         // of this node
  std::string node;                // this node's name
  std::function<bool()> stopping;  // true: stop waiting for a slot
  /// Handles a replica that does not match its seal: reports it. The replica stays, for its good
  /// chunks, while a parity group protects the version.
  std::function<void(const ShardKey& key, Tier tier, const Status& how)> damaged;
  /// Handles a replica that is of no further use: takes it out of service and reports it as a
  /// RemovedReplica.
  std::function<void(const ShardKey& key, Tier tier, const Status& how)> lost;
  /// Reports a replica that matches its seal, possibly after a repair.
  std::function<void(const ShardIdentity& identity, Tier tier, const ShardSeal& seal)> verified;
  /// Opens a shard in this node's memory, retained segments included.
  std::function<Result<std::unique_ptr<ShardReader>>(const ShardKey& key)> in_memory;
};

/// Brings a rank's shard or a parity shard into its slots and verifies every byte. The source
/// is the slot that already has the shard, this node's disk, another agent or the parity group. The
/// group also repairs the bad chunks of a damaged replica on this node. On success the slot is
/// sealed and reported, and a rank's slot is held for the restore. A damaged source is reported;
/// the error is then DataLoss and names the damage. Blocks; run it on a worker.
Status BringIntoMemory(const RestoreTools& tools, RankSlots& slots, const PrepareShard& prepare);

/// Restores the shard to this node's disks: from the rank's memory on this node (`slots` is nullptr
/// without one), or decoded by its parity group. A replica on disk with bad chunks is repaired in
/// place; one that the disk cannot keep is quarantined first. On success the shard is durable and
/// reported. Blocks; run it on a worker.
Status BringToDisk(const RestoreTools& tools, RankSlots* slots, const PrepareShard& prepare);

/// Verifies all chunks of a pinned slot. DataLoss names the first bad one.
Status VerifySlot(Segment& segment, uint32_t slot);

}  // namespace holdfast::agent
