#pragma once

#include <memory>
#include <string>

#include "cli/core/progress.h"
#include "cli/export/target.h"
#include "cli/shards/shard_source.h"

namespace holdfast::cli {

/// "rank-00000-of-00004.safetensors"
std::string RestoredName(Rank rank, uint32_t world);

/// Writes one shard into a folder as a file. Thread-compatible; several may be written
/// concurrently.
class ShardFile : public ShardSink {
 public:
  /// `target` and `progress` must outlive this object.
  static Result<std::unique_ptr<ShardFile>> Create(const TargetFolder& target,
                                                   const ExpectedShard& expected,
                                                   Progress& progress);

  /// Checks that the seal is of the expected shard, and reserves the space.
  Status Begin(const ShardSeal& seal) override;
  Status Chunk(uint64_t offset, std::span<const std::byte> bytes) override;

  TargetFile& file() { return file_; }
  /// Returns the bytes counted as progress, to retract them when another replica is tried.
  uint64_t written_bytes() const { return written_; }

 private:
  ShardFile(TargetFile file, ExpectedShard expected, Progress& progress)
      : file_(std::move(file)), expected_(std::move(expected)), progress_(progress) {}

  TargetFile file_;
  const ExpectedShard expected_;
  Progress& progress_;
  uint64_t written_ = 0;
};

}  // namespace holdfast::cli
