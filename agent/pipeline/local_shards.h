#pragma once

#include <memory>
#include <vector>

#include "agent/pipeline/damage_tracker.h"
#include "agent/pipeline/rank_registry.h"
#include "base/tiers.h"
#include "storage/chunks/chunk_source.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// The replicas that this node reaches without other nodes: in memory, retained segments included,
/// on its disks, and at shared tiers. Thread-safe; has no mutex.
class LocalShards {
 public:
  /// The arguments outlive the object and its sources.
  LocalShards(RankRegistry& ranks, const Volume& volume, DamageTracker& damage,
              PerTier<TierStore*> shared = {})
      : ranks_(ranks), volume_(volume), damage_(damage), shared_(shared) {}

  /// Returns the source of the replica at `tier`: memory, disk or a shared tier.
  std::unique_ptr<ChunkSource> Source(const ShardKey& key, Tier tier) const;
  /// Returns whether memory or disk has a replica, damaged ones included.
  bool Has(const ShardKey& key) const;
  /// Checks the shard's seal and structure, and with `deep` all its chunks. Returns the seal.
  /// Damage is reported.
  Result<ShardSeal> Verify(const ShardKey& key, Tier tier, bool deep) const;
  /// Returns the shards that must stay in memory. A save may take the slots of the others.
  std::vector<ShardKey> KeptInMemory() const;

 private:
  Status Check(const ShardKey& key, Tier tier, bool deep, const ShardSeal& seal) const;

  RankRegistry& ranks_;
  const Volume& volume_;
  DamageTracker& damage_;
  const PerTier<TierStore*> shared_;  // null: this node does not reach the tier
};

}  // namespace holdfast::agent
