#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/cli/agent_client.h"
#include "client/cli/data_dirs.h"
#include "coordinator/api/coordinator.pb.h"
#include "storage/base/mutex.h"
#include "storage/parity/group_decoder.h"

// Shards that have no copy left, decoded by this command out of what their parity group has left:
// in data directories, or at agents.

namespace holdfast::cli {

/// What is there of one version. Makes readers of it, each for one thread. Thread-safe.
class VersionImages {
 public:
  virtual ~VersionImages() = default;
  virtual std::unique_ptr<ShardImages> Open() const = 0;
  /// Parity shards that have a copy.
  virtual std::vector<Rank> Parity() const = 0;
};

/// `volumes` outlive it.
std::unique_ptr<VersionImages> ImagesOf(const std::vector<OfflineVolume>& volumes,
                                        const std::string& job, VersionId version);
/// The copies that `plan`, of a whole version, names. `options` outlive it.
std::unique_ptr<VersionImages> ImagesOf(const coordinator::PlanRestoreReply& plan,
                                        const std::string& job, const GlobalOptions& options);

/// Decodes lost shards of one version. Thread-safe.
class LostShards {
 public:
  LostShards(std::string job, VersionId version, std::unique_ptr<VersionImages> images)
      : job_(std::move(job)), version_(version), images_(std::move(images)) {}

  /// The seal of a shard that can be decoded. DataLoss: too much of its group is missing, and what;
  /// NotFound: no parity shard that is here protects the rank.
  Result<ShardSeal> Find(Rank rank);
  /// Those of all groups that have a readable parity shard.
  std::vector<GroupPlan> Plans();
  /// Hands the image bytes from `offset` on, a chunk's first byte, to `sink`: whole chunks, each
  /// compared with the seal.
  Status Stream(Rank rank, uint64_t offset, uint64_t bytes, ShardSink& sink);

 private:
  struct Opened {
    std::unique_ptr<ShardImages> images;
    std::unique_ptr<GroupDecoder> decoder;
  };
  Result<Opened> Open(Rank rank);
  void GiveBack(Rank rank, Opened opened);

  const std::string job_;
  const VersionId version_;
  const std::unique_ptr<VersionImages> images_;
  Mutex mutex_;
  std::map<Rank, std::vector<Opened>> idle_ HOLDFAST_GUARDED_BY(mutex_);  // by lost rank
};

}  // namespace holdfast::cli
