#pragma once

#include <string>
#include <vector>

#include "storage/base/ids.h"
#include "storage/base/status.h"
#include "storage/format/replica_sample.h"
#include "storage/format/seal.h"

namespace holdfast::agent {

/// What a rank's threads tell the node. Called from those threads, with no lock held; must not
/// block.
class RankEvents {
 public:
  virtual ~RankEvents() = default;
  /// The slot is sealed in the ledger. `samples`: of its image.
  virtual void OnSealed(const ShardSeal& seal, std::vector<ReplicaSample> samples) = 0;
  /// The save will not be sealed.
  virtual void OnSaveFailed(const ShardKey& key, const Status& why) = 0;
  /// The shard is published on disk, durable.
  virtual void OnStored(const ShardSeal& seal) = 0;
  /// The shard will not be on disk. `overtaken`: it was passed over, nothing failed.
  virtual void OnNotStored(const ShardKey& key, const Status& why) = 0;
  /// A slot may have become free or freeable.
  virtual void OnSlotsChanged(const std::string& job, Rank rank) = 0;
};

}  // namespace holdfast::agent
