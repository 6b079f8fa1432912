#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "cli/core/command.h"
#include "cli/shards/replicas.h"

// The sources of the shards of one version, for commands that read a complete version.

namespace holdfast::cli {

/// A version that can be read, with the sources of its shards.
struct RestorePlan {
  std::string job;
  VersionId version;
  uint32_t world = 0;
  std::vector<ShardSource> shards;  // by rank

  uint64_t bytes() const {
    uint64_t total = 0;
    for (const ShardSource& shard : shards) total += shard.expected.image_bytes;
    return total;
  }
};

/// Chooses a version, and knows the replicas of its shards. Several threads may read concurrently.
class RestoreSource {
 public:
  virtual ~RestoreSource() = default;
  /// Plans the reads of `version`; empty: of the newest that can be restored.
  virtual Result<RestorePlan> Plan(const std::string& job, std::optional<VersionId> version) = 0;
  /// Returns `planned`, the other replicas of the same shard, and its parity group.
  virtual std::vector<ShardSource> ReplicasOf(const ShardSource& planned) = 0;
  /// The source must outlive the result.
  virtual std::unique_ptr<ChunkSource> Open(const ShardSource& shard) = 0;
};

/// The common options that choose a version and its source.
class SourceOptions {
 public:
  void AddTo(CLI::App& command);

  bool offline() const { return !dirs_.empty(); }
  /// Opens the source and chooses the version.
  Result<std::unique_ptr<RestoreSource>> Open(Context& context, const std::string& job,
                                              RestorePlan* plan) const;
  /// For data directories, which do not record what was committed: prints the chosen version on
  /// stderr.
  void PrintChosenVersion(const RestorePlan& plan) const;
  /// The heading of the column with a shard's place, and its key in JSON.
  const char* place_title() const { return offline() ? "DATA DIR" : "NODE"; }
  const char* place_key() const { return offline() ? "data_dir" : "node"; }

 private:
  std::string version_;
  std::string tier_;
  std::vector<std::string> dirs_;
};

}  // namespace holdfast::cli
