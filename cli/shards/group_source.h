#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cli/cluster/agent_client.h"
#include "cli/offline/data_dirs.h"
#include "coordinator/api/coordinator.pb.h"
#include "storage/parity/group_decoder.h"

// Decodes shards that have no replica left from the rest of their parity group, in data directories
// or at agents.

namespace holdfast::cli {

/// The available shards of one version. Opens readers, each for one thread. Thread-safe.
class VersionImages {
 public:
  virtual ~VersionImages() = default;
  virtual std::unique_ptr<ShardImages> Open() const = 0;
  /// Returns the parity shards that have a replica.
  virtual std::vector<Rank> Parity() const = 0;
};

/// `volumes` must outlive the result.
std::unique_ptr<VersionImages> ImagesOf(const std::vector<OfflineVolume>& volumes,
                                        const std::string& job, VersionId version);
/// Uses the replicas that `plan` names. `options` must outlive the result.
std::unique_ptr<VersionImages> ImagesOf(const coordinator::PlanRestoreReply& plan,
                                        const std::string& job, const GlobalOptions& options);

/// Decodes lost shards of one version. Thread-safe.
class LostShards {
 public:
  LostShards(std::string job, VersionId version, std::unique_ptr<VersionImages> images)
      : job_(std::move(job)), version_(version), images_(std::move(images)) {}

  /// Returns the seal of a shard that can be decoded. DataLoss names the missing parts of its group
  /// when there are too many. NotFound: no available parity shard protects the rank.
  Result<ShardSeal> Find(Rank rank);
  /// Returns the plans of all groups that have a readable parity shard.
  std::vector<GroupPlan> Plans();
  /// Decodes image bytes from `offset`, a chunk's first byte, and passes complete chunks to `sink`,
  /// each compared with the seal.
  Status Stream(Rank rank, uint64_t offset, uint64_t bytes, ShardSink& sink);

 private:
  struct Opened {
    std::unique_ptr<ShardImages> images;
    std::unique_ptr<GroupDecoder> decoder;
  };
  Result<Opened> Open(Rank rank);
  void Return(Rank rank, Opened opened);

  const std::string job_;
  const VersionId version_;
  const std::unique_ptr<VersionImages> images_;
  Mutex mutex_;
  std::map<Rank, std::vector<Opened>> idle_ HOLDFAST_GUARDED_BY(mutex_);  // by lost rank
};

}  // namespace holdfast::cli
