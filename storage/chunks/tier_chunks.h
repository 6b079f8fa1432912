#pragma once

#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/tiers.h"
#include "storage/chunks/chunk_source.h"
#include "storage/volume/tier_store.h"

namespace holdfast {

/// Returns an error of a shared tier as one that does not mean the loss of a replica: Unavailable
/// instead of IoError. Other codes stay.
Status TierError(const Status& status);

/// A replica at a shared tier. Damage is reported: the coordinator has the shard copied there
/// again.
class TierChunks final : public ChunkSource {
 public:
  /// `store` outlives the source; null: this node does not reach the tier.
  TierChunks(const TierStore* store, Tier tier, ShardKey key)
      : store_(store), tier_(tier), key_(std::move(key)) {}

  SourceCost cost() const override { return SourceCost::kRemote; }
  std::string where() const override { return "at tier " + std::string(TraitsOf(tier_).name); }
  std::optional<Tier> local_tier() const override { return tier_; }
  /// FailedPrecondition: this node does not reach the tier. Unavailable: the tier's file system
  /// failed.
  Result<ShardSeal> ReadSeal() override;
  Status Read(const ShardSeal& seal, std::span<WantedChunk> chunks) override;

 private:
  Status Check() const;

  const TierStore* const store_;
  const Tier tier_;
  const ShardKey key_;
  Mutex mutex_;
  std::unique_ptr<ShardChunks> files_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
