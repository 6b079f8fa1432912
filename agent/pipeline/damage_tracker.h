#pragma once

#include <set>
#include <string>
#include <vector>

#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/rank_registry.h"
#include "base/mutex.h"
#include "base/tiers.h"
#include "storage/chunks/source_selector.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// Decides what becomes of the damaged replicas of this node and reports them. Every detector of
/// damage calls it: restores, version readers, peers, the scrubber, the data service.
///
/// Thread-safe. Its mutex is a leaf.
class DamageTracker final : public DamageReporter {
 public:
  /// The arguments outlive the object.
  DamageTracker(RankRegistry& ranks, Volume& volume, CoordinatorLink& link,
                PerTier<TierStore*> shared = {})
      : ranks_(ranks), volume_(volume), link_(link), stores_(shared) {
    stores_[Tier::kDisk] = &volume;
  }

  /// Handles a replica that does not match its seal: reports it and stops offering it as an intact
  /// replica. If a parity group protects the version, the replica stays until it is repaired, and
  /// its good chunks remain readable. Otherwise does the same as OnLost(). Returns false when the
  /// damage of a replica that stays was known already.
  bool OnDamaged(const ShardKey& key, Tier tier, const Status& how) override;
  /// Takes a replica of no further use out of service, and reports it as removed: frees its slot,
  /// or moves its files to quarantine.
  void OnLost(const ShardKey& key, Tier tier, const Status& how) override;
  /// Reports a replica that matches its seal, possibly after a repair.
  void OnVerified(const ShardIdentity& identity, Tier tier, const ShardSeal& seal);
  /// Forgets the damage of shards that were removed from disk.
  void ForgetOnDisk(const std::vector<ShardKey>& keys);

 private:
  /// Returns the seal of a replica on this node. Fails when no parity group protects the version or
  /// the seal cannot be read.
  Result<ShardSeal> SealOfProtected(const ShardKey& key, Tier tier);
  bool IsProtected(const ShardKey& key);

  RankRegistry& ranks_;
  Volume& volume_;
  CoordinatorLink& link_;
  PerTier<TierStore*> stores_;
  Mutex mutex_;
  std::set<ShardKey> damaged_on_disk_ HOLDFAST_GUARDED_BY(mutex_);  // have bad chunks
};

}  // namespace holdfast::agent
