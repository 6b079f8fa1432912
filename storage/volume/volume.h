#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/clock.h"
#include "storage/base/ids.h"
#include "storage/base/mutex.h"
#include "storage/format/seal.h"
#include "storage/io/block_file.h"
#include "storage/volume/seen_life.h"

// The versions on one node's disks. Layout, publishing order and recovery: docs/formats/volume.md.

namespace holdfast {

struct VolumeOptions {
  std::string cluster;  // written into a new data directory; another cluster's is refused
  std::string node;
  IoOptions io;
};

/// One published shard.
struct StoredShard {
  ShardIdentity identity;
  uint64_t image_bytes = 0;
  uint64_t digest = 0;
  uint32_t parts = 0;
  LifeId life = {};
};

/// What Open() found and did: for the log and for tests.
struct RecoveryReport {
  std::vector<StoredShard> shards;       // published, structure checked (lengths, seal)
  std::vector<std::string> quarantined;  // "path: why", moved to <data_dir>/quarantine/
  std::vector<std::string> dropped;  // unpublished temporaries and half-deleted versions removed
};

/// Writes one shard while its image is still being copied. Nothing is visible before Publish()
/// returns OK, and then it is durable: data, seal and directory entries are synced.
/// Thread-compatible.
class ShardWriter {
 public:
  virtual ~ShardWriter() = default;  // Not published: its temporaries are removed.

  /// The image's first `ready_bytes` are final and may be written now. Returns quickly; queues
  /// whole blocks only. Monotonic.
  virtual Status Advance(uint64_t ready_bytes) = 0;
  /// Waits until everything that was queued is written. The runs of the image, [begin, end), that
  /// are written by then and not read again: their memory may be given back, for images that are
  /// larger than the memory there is for them.
  virtual Result<std::vector<std::pair<uint64_t, uint64_t>>> Settle() = 0;
  /// Writes the rest, checks every completion, syncs, renames, syncs directories. `seal` describes
  /// the complete image (its parts and header are filled in here). On error nothing is published;
  /// Aborted (here and from Advance) when RemoveVersion took the version meanwhile.
  virtual Status Publish(ShardSeal seal) = 0;
};

/// Chunks of one published shard, wherever a reader needs them. Thread-compatible.
class ShardChunks {
 public:
  virtual ~ShardChunks() = default;
  virtual const ShardSeal& seal() const = 0;
  /// Chunk `index` (kChunkBytes, the last shorter), checked; valid until the next call. DataLoss
  /// names file and chunk. Blocks.
  virtual Result<std::span<const std::byte>> Read(uint64_t index) = 0;
};

class Volume {
 public:
  /// Opens `dirs` (each on its own device; made by OpenDirectory or simulated), validates what is
  /// there, quarantines what it does not know, finishes deletions and drops temporaries.
  /// FailedPrecondition when a directory belongs to another cluster, or is not empty and not ours.
  static Result<std::unique_ptr<Volume>> Open(std::vector<std::unique_ptr<Directory>> dirs,
                                              const VolumeOptions& options, Clock& clock);
  virtual ~Volume() = default;

  virtual const RecoveryReport& recovery() const = 0;

  /// `image` is the whole slot image (its length is the image's exact length), aligned to
  /// kBlockBytes and readable up to the next multiple of kBlockBytes; it outlives the writer. Parts
  /// go to all directories in parallel. AlreadyExists when the shard is published. OutOfSpace from
  /// fallocate.
  virtual Result<std::unique_ptr<ShardWriter>> CreateShard(const ShardIdentity& identity,
                                                           std::span<const std::byte> image) = 0;

  /// Published shards, by job, version, rank.
  virtual std::vector<StoredShard> List() const = 0;
  virtual Result<ShardSeal> ReadSeal(const ShardKey& key) const = 0;
  /// Reads the image (aligned to kBlockBytes, capacity up to the next multiple) from all parts in
  /// parallel; every chunk is checked against the seal while later ones are still read. DataLoss
  /// names file and chunk. `progress` gets verified bytes, from this thread.
  virtual Result<ShardSeal> ReadShard(const ShardKey& key, std::span<std::byte> into,
                                      const std::function<void(uint64_t)>& progress) const = 0;
  /// The image chunk by chunk (kChunkBytes, the last shorter), in order, each checked against
  /// `seal` (from ReadSeal) before `sink` gets it; with bounded memory. An error from `sink` ends
  /// it.
  virtual Status StreamShard(
      const ShardSeal& seal,
      const std::function<Status(uint64_t offset, std::span<const std::byte> chunk)>& sink)
      const = 0;
  /// For reading here and there; StreamShard is faster from front to back. NotFound; DataLoss.
  virtual Result<std::unique_ptr<ShardChunks>> OpenChunks(const ShardKey& key) const = 0;
  /// Structure only, or (deep) every byte, with bounded memory.
  virtual Status VerifyShard(const ShardKey& key, bool deep) const = 0;
  /// Puts chunk `index` back in place: `bytes` must be what the seal says (InvalidArgument). For a
  /// chunk that is bad: a crash in the middle leaves it bad and harms no other. OK: it is durable,
  /// and was read again. DataLoss: it reads differently still.
  virtual Status RewriteChunk(const ShardKey& key, uint64_t index,
                              std::span<const std::byte> bytes) = 0;
  /// Deletes a version's shards on this node: tombstone, sync, unlink. Idempotent; NotFound if
  /// none.
  virtual Status RemoveVersion(const std::string& job, VersionId version) = 0;
  /// Moves a damaged shard out of the way, so that it is not offered again.
  virtual Status Quarantine(const ShardKey& key, const std::string& why) = 0;
  /// What was moved out of the way and is still there, over all directories.
  virtual uint64_t QuarantinedFiles() const = 0;
  virtual uint64_t FreeBytes() const = 0;
  /// Which coordinator the node followed last; see seen_life.h.
  virtual Result<SeenLife> ReadLife() const { return SeenLife{}; }
  virtual Status WriteLife(const SeenLife&) { return Status::Ok(); }
  /// Passed on to every directory; see Directory.
  virtual void RegisterMemory(std::span<std::byte> memory) = 0;
  virtual void UnregisterMemory(std::span<std::byte> memory) = 0;
  /// "io_uring+O_DIRECT" …, one a directory.
  virtual std::vector<std::string> Describe() const = 0;
};

/// Opens data directories for reading only (offline `inspect`, `verify`): validates nothing at
/// start and changes nothing; the mutating calls return FailedPrecondition.
Result<std::unique_ptr<Volume>> OpenVolumeReadOnly(const std::vector<std::string>& data_dirs,
                                                   const IoOptions& io);

}  // namespace holdfast
