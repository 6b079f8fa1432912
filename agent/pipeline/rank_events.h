#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "storage/format/replica_sample.h"
#include "storage/format/seal.h"

namespace holdfast::agent {

/// Events that a rank's threads report to the node. Called from those threads with no lock held;
/// must not block.
class RankEvents {
 public:
  virtual ~RankEvents() = default;
  /// The slot is sealed in the ledger. `samples` are those of its image.
  virtual void OnSealed(const ShardSeal& seal, std::vector<ReplicaSample> samples) = 0;
  /// The save will not be sealed.
  virtual void OnSaveFailed(const ShardKey& key, const Status& why) = 0;
  /// The shard is published on disk and durable.
  virtual void OnStored(const ShardSeal& seal) = 0;
  /// The shard will not be on disk, because writing it failed.
  virtual void OnNotStored(const ShardKey& key, const Status& why) = 0;
  /// A slot may have become free or freeable.
  virtual void OnSlotsChanged(const std::string& job, Rank rank) = 0;
};

}  // namespace holdfast::agent
