#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "storage/chunks/chunk_source.h"
#include "storage/volume/volume.h"

namespace holdfast {

/// A replica on the disks of this node. A read of the complete image into aligned memory uses all
/// data directories in parallel. Other reads keep a few open files for later reads.
class DiskChunks final : public ChunkSource {
 public:
  /// `volume` outlives the source. `where` names the disks in messages.
  DiskChunks(const Volume& volume, ShardKey key, std::string where = "on this node's disk")
      : volume_(volume), key_(std::move(key)), where_(std::move(where)) {}

  SourceCost cost() const override { return SourceCost::kDisk; }
  std::string where() const override { return where_; }
  std::optional<Tier> local_tier() const override { return Tier::kDisk; }
  Result<ShardSeal> ReadSeal() override;
  /// IoError: a device cannot read some of the chunks; the others are done. The volume words the
  /// errors, which name files.
  Status Read(const ShardSeal& seal, std::span<WantedChunk> chunks) override;

 private:
  Result<std::unique_ptr<ShardChunks>> Take(const ShardSeal& seal);
  void Return(std::unique_ptr<ShardChunks> files);
  /// Reads the complete image if `chunks` are consecutive parts of aligned memory. Returns false
  /// when they are not, or when a chunk is bad.
  Result<bool> ReadWhole(const ShardSeal& seal, std::span<WantedChunk> chunks);
  Status ReadEach(const ShardSeal& seal, std::span<WantedChunk> chunks);

  const Volume& volume_;
  const ShardKey key_;
  const std::string where_;
  Mutex mutex_;
  std::vector<std::unique_ptr<ShardChunks>> idle_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
