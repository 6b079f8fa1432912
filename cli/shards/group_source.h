#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cli/shards/replicas.h"
#include "storage/parity/group_decoder.h"

// Decodes shards that have no replica left from the rest of their parity group.

namespace holdfast::cli {

/// Decodes lost shards of one version. Thread-safe.
class LostShards {
 public:
  explicit LostShards(VersionReplicas replicas) : replicas_(std::move(replicas)) {}

  const VersionReplicas& replicas() const { return replicas_; }
  /// Returns the seal of a shard that can be decoded. DataLoss names the missing parts of its group
  /// when there are too many. NotFound: no available parity shard protects the rank.
  Result<ShardSeal> Find(Rank rank);
  /// Returns the plans of all groups that have a readable parity shard.
  std::vector<GroupPlan> Plans();
  /// Decodes chunks of the image that `seal` describes; see ChunkSource::Read().
  Status Read(Rank rank, const ShardSeal& seal, std::span<WantedChunk> chunks);

 private:
  struct Opened {
    std::unique_ptr<ShardImages> images;
    std::unique_ptr<GroupDecoder> decoder;
  };
  Result<Opened> Open(Rank rank);
  void Return(Rank rank, Opened opened);

  const VersionReplicas replicas_;
  Mutex mutex_;
  std::map<Rank, std::vector<Opened>> idle_ HOLDFAST_GUARDED_BY(mutex_);  // by lost rank
};

/// A shard that its parity group decodes.
class GroupChunks final : public ChunkSource {
 public:
  /// `lost` must outlive the source.
  GroupChunks(LostShards& lost, ShardKey key) : lost_(lost), key_(std::move(key)) {}

  SourceCost cost() const override { return SourceCost::kDecode; }
  std::string where() const override { return "peer on parity group"; }
  Result<ShardSeal> ReadSeal() override { return lost_.Find(key_.rank); }
  Status Read(const ShardSeal& seal, std::span<WantedChunk> chunks) override {
    HOLDFAST_RETURN_IF_ERROR(CheckWanted(key_, seal, chunks));
    return lost_.Read(key_.rank, seal, chunks);
  }

 private:
  LostShards& lost_;
  const ShardKey key_;
};

}  // namespace holdfast::cli
