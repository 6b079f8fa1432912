#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/core/options.h"
#include "cli/offline/data_dirs.h"
#include "coordinator/api/coordinator.pb.h"
#include "storage/chunks/source_selector.h"

// The replicas of the shards of one version, in data directories or at agents.

namespace holdfast::cli {

/// The identity and content that a shard must have.
struct ExpectedShard {
  ShardKey key;
  uint32_t world = 0;
  uint64_t image_bytes = 0;
  uint64_t digest = 0;  // 0: any

  /// Returns DataLoss when a seal with this digest is of another shard or world, or empty.
  Status Check(const ShardSeal& seal) const;
};

/// One shard of a version, and the replica to read.
struct ShardSource {
  ExpectedShard expected;
  Tier tier = Tier::kDisk;
  std::string node;                // or the data directory
  std::string address;             // of an agent
  const Volume* volume = nullptr;  // of a data directory
  /// No replica is read: the shard is decoded from its parity group. `node` is then "parity group",
  /// and the tier is peer.
  bool decoded = false;

  bool SamePlace(const ShardSource& other) const {
    return tier == other.tier && node == other.node && decoded == other.decoded;
  }
};

/// Returns the chunks of a replica that is not `decoded`. `options` and `clock` must outlive the
/// result.
std::unique_ptr<ChunkSource> OpenReplica(const ShardSource& replica, const GlobalOptions& options,
                                         const Clock& clock);

/// The replicas of one version. Thread-safe.
class VersionReplicas {
 public:
  /// Those in data directories. `volumes`, `options` and `clock` must outlive the object.
  VersionReplicas(const std::vector<OfflineVolume>& volumes, const std::string& job,
                  VersionId version, const GlobalOptions& options, const Clock& clock);
  /// Those at the agents that `plan` names. `options` and `clock` must outlive the
  /// object.
  VersionReplicas(const coordinator::PlanRestoreReply& plan, const std::string& job,
                  const GlobalOptions& options, const Clock& clock);

  const std::string& job() const { return job_; }
  VersionId version() const { return version_; }
  /// Returns the replicas of a rank's shard or of a parity shard.
  std::vector<ShardSource> Of(Rank shard) const;
  /// Returns the sources of a shard; empty: there is no replica.
  SourceList Open(Rank shard) const;
  /// Returns the parity shards that have a replica.
  std::vector<Rank> Parity() const;

 private:
  const std::string job_;
  const VersionId version_;
  const GlobalOptions& options_;
  const Clock& clock_;
  std::map<Rank, std::vector<ShardSource>> replicas_;
};

}  // namespace holdfast::cli
