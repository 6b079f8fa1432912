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

#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "storage/format/seal.h"
#include "storage/io/block_file.h"
#include "storage/volume/commits_file.h"
#include "storage/volume/seen_life.h"
#include "storage/volume/shard_access.h"
#include "storage/volume/tier_store.h"

// The versions on one node's disks. Layout, publishing order and recovery: docs/formats/volume.md.

namespace holdfast {

struct VolumeOptions {
  std::string cluster;  // written into a new data directory; directories of others are refused
  std::string node;
  IoOptions io;
  JobAccess access = {};  // of the files of a job; none: only the user of this process
};

/// The findings and actions of Open(), for the log and for tests.
struct RecoveryReport {
  std::vector<StoredShard> shards;       // published, structure checked (lengths, seal)
  std::vector<std::string> quarantined;  // "path: why", moved to <data_dir>/quarantine/
  std::vector<std::string> dropped;      // deleted: unpublished temporaries, half-deleted versions
};

/// The tier disk of one node.
class Volume : public TierStore {
 public:
  /// Opens `dirs` (each on its own device; made by OpenDirectory or simulated). Validates their
  /// contents, quarantines damaged and unknown entries, finishes deletions and deletes temporaries.
  /// FailedPrecondition when a directory belongs to another cluster, or is not empty and not
  /// Holdfast's.
  static Result<std::unique_ptr<Volume>> Open(std::vector<std::unique_ptr<Directory>> dirs,
                                              const VolumeOptions& options, Clock& clock);
  virtual const RecoveryReport& recovery() const = 0;

  /// Parts are written to all directories in parallel. OutOfSpace when fallocate fails for lack of
  /// space.
  Result<std::unique_ptr<ShardWriter>> CreateShard(const ShardIdentity& identity,
                                                   std::span<const std::byte> image) override = 0;

  /// Returns the published shards, ordered by job, version and rank.
  virtual std::vector<StoredShard> List() const = 0;
  Result<std::vector<StoredShard>> ListJob(const std::string& job) const override;
  /// Reads the image into `into` from all parts in parallel and verifies every chunk against the
  /// seal while later ones are still being read. `into` is aligned to kBlockBytes and has capacity
  /// up to the next multiple of kBlockBytes. DataLoss names the file and the chunk. Calls
  /// `progress` with the number of verified bytes, on the calling thread.
  virtual Result<ShardSeal> ReadShard(const ShardKey& key, std::span<std::byte> into,
                                      const std::function<void(uint64_t)>& progress) const = 0;
  /// Passes the image to `sink` chunk by chunk (kChunkBytes, the last may be shorter), in order.
  /// Each chunk is verified against `seal` (from ReadSeal) first. Uses bounded memory. An error
  /// from `sink` ends the stream.
  virtual Status StreamShard(
      const ShardSeal& seal,
      const std::function<Status(uint64_t offset, std::span<const std::byte> chunk)>& sink)
      const = 0;
  /// Repairs the corrupt chunk `index` in place. InvalidArgument when `bytes` do not match the
  /// seal. A crash in the middle leaves this chunk corrupt and the others unchanged. OK: the chunk
  /// is durable and was verified by reading it again. DataLoss: the bytes that were read again are
  /// still wrong.
  virtual Status RewriteChunk(const ShardKey& key, uint64_t index,
                              std::span<const std::byte> bytes) = 0;
  /// Returns the number of entries in the quarantine folders of all directories.
  virtual uint64_t QuarantinedFiles() const = 0;
  virtual uint64_t FreeBytes() const = 0;
  /// Read and write the record of the coordinator that the node followed last; see seen_life.h.
  virtual Result<SeenLife> ReadLife() const { return SeenLife{}; }
  virtual Status WriteLife(const SeenLife&) { return Status::Ok(); }
  /// Read and write the record of committed versions; see commits_file.h.
  virtual Result<std::vector<VersionCommit>> ReadCommits() const {
    return std::vector<VersionCommit>{};
  }
  virtual Status WriteCommits(const std::vector<VersionCommit>&) { return Status::Ok(); }
  /// Forward to every directory; see Directory.
  virtual void RegisterMemory(std::span<std::byte> memory) = 0;
  virtual void UnregisterMemory(std::span<std::byte> memory) = 0;
  /// Returns e.g. "io_uring+O_DIRECT", one entry per directory.
  virtual std::vector<std::string> Describe() const = 0;
};

/// Opens data directories for reading only (offline `inspect`, `verify`). Lists damaged shards,
/// too, and changes nothing; the mutating calls return FailedPrecondition.
Result<std::unique_ptr<Volume>> OpenVolumeReadOnly(const std::vector<std::string>& data_dirs,
                                                   const IoOptions& io, Clock& clock);

}  // namespace holdfast
