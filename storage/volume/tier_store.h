#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/life.h"
#include "storage/format/seal.h"

// The interface to the shards of one tier. The tier disk (volume.h) and the shared tiers
// (storage/remote) implement it and pass the same tests (tests/storage/tiers).

namespace holdfast {

/// One published shard.
struct StoredShard {
  ShardIdentity identity;
  uint64_t image_bytes = 0;
  uint64_t digest = 0;
  uint32_t parts = 0;
  LifeId life = {};
};

/// Writes one shard while its image is still being copied. The shard is not visible before
/// Publish() returns OK, and then it is durable: data, seal and directory entries are synced.
/// Thread-compatible.
class ShardWriter {
 public:
  virtual ~ShardWriter() = default;  // Not published: its temporaries are removed.

  /// Declares the image's first `ready_bytes` final: they may be written now. Returns quickly;
  /// queues only complete blocks. `ready_bytes` must not decrease.
  virtual Status Advance(uint64_t ready_bytes) = 0;
  /// Waits until all queued bytes are written. Returns the ranges [begin, end) of the image that
  /// are written and will not be read again. Their memory may be released, which allows images that
  /// are larger than the available memory.
  virtual Result<std::vector<std::pair<uint64_t, uint64_t>>> Settle() = 0;
  /// Writes the rest, checks every completion, syncs, renames, and syncs the directories. `seal`
  /// describes the complete image; Publish fills in its parts and header. On error nothing is
  /// published. Publish and Advance return Aborted when RemoveVersion removed the version
  /// meanwhile.
  virtual Status Publish(ShardSeal seal) = 0;
};

/// Random access to the chunks of one published shard. Thread-compatible.
class ShardChunks {
 public:
  virtual ~ShardChunks() = default;
  virtual const ShardSeal& seal() const = 0;
  /// Returns chunk `index` (kChunkBytes, the last may be shorter), verified and valid until the
  /// next call. DataLoss names the file and the chunk. Blocks.
  virtual Result<std::span<const std::byte>> Read(uint64_t index) = 0;
};

/// The published shards of one tier. Thread-safe. Calls block as long as the file system does.
///
/// A shard is published exactly when its seal has its final name. A store syncs the data before it
/// renames the data, syncs the directory before it renames the seal, and syncs the directory again
/// before Publish() returns. After a crash a shard is therefore either complete or not there.
class TierStore {
 public:
  virtual ~TierStore() = default;

  /// Makes a writer for a shard. `image` is the complete image, with the image's exact length. It
  /// is aligned to kBlockBytes, readable up to the next multiple of kBlockBytes, and must outlive
  /// the writer. AlreadyExists when the shard is published. OutOfSpace when the tier is full.
  virtual Result<std::unique_ptr<ShardWriter>> CreateShard(const ShardIdentity& identity,
                                                           std::span<const std::byte> image) = 0;
  /// Returns the published shards of a job, ordered by version and rank.
  virtual Result<std::vector<StoredShard>> ListJob(const std::string& job) const = 0;
  /// NotFound when the shard is not published.
  virtual Result<ShardSeal> ReadSeal(const ShardKey& key) const = 0;
  /// Opens a shard for random access. NotFound; DataLoss.
  virtual Result<std::unique_ptr<ShardChunks>> OpenChunks(const ShardKey& key) const = 0;
  /// Verifies the structure only or, if `deep`, every byte, with bounded memory.
  virtual Status VerifyShard(const ShardKey& key, bool deep) const = 0;
  /// Deletes a version's shards: tombstone, sync, unlink. Idempotent; NotFound when there are none.
  virtual Status RemoveVersion(const std::string& job, VersionId version) = 0;
  /// Moves a damaged shard to quarantine, so that it is not offered again.
  virtual Status Quarantine(const ShardKey& key, const std::string& why) = 0;
  /// Sets the life of the coordinator's store whose shards a shared tier has.
  virtual void SetLife(LifeId /*life*/) {}
};

}  // namespace holdfast
