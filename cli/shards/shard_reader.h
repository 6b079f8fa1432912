#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cli/core/progress.h"
#include "cli/shards/shard_source.h"

namespace holdfast::cli {

/// Receives consecutive chunks of an image, each compared with the seal.
using ChunkSink = std::function<Status(uint64_t offset, std::span<const std::byte> bytes)>;

/// Reads one shard of a version, each chunk from the first of its replicas that has it intact, and
/// finally from its parity group. Reports on stderr when a replica fails. Thread-compatible.
class ShardReader {
 public:
  /// Sets `shard` to the replica that is read, when another one failed. The arguments must outlive
  /// the reader.
  ShardReader(RestoreSource& source, ShardSource& shard, Progress& progress);
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  /// Passes the image bytes [begin, end) to `sink`, in order and in complete chunks. Both are
  /// bounds of chunks. An error of `sink` ends the read.
  Status Read(uint64_t begin, uint64_t end, const ChunkSink& sink);

 private:
  /// Returns `status` with the code of the damage, or else of the first replica that failed. The
  /// last one is often a group without parity, and not the reason.
  Status Explain(const Status& status) const;
  void OnFailure(const ChunkSource& failed, const Status& how, const ChunkSource* next);

  const ExpectedShard expected_;
  ShardSource& shard_;
  Progress& progress_;
  std::vector<ShardSource> replicas_;
  SourceList sources_;  // of `replicas_`
  SourceSelector selector_;
  std::vector<const ChunkSource*> failed_;  // reported
  ErrorCode failure_ = ErrorCode::kOk;      // of the read in progress
  std::optional<ShardSeal> seal_;
  std::vector<std::byte> window_;
};

}  // namespace holdfast::cli
