#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "cli/cluster/agent_client.h"
#include "cli/core/command.h"
#include "cli/core/progress.h"

// The sources of the shards of one version, for commands that read a complete version.

namespace holdfast::cli {

/// The identity and content that a shard must have.
struct ExpectedShard {
  ShardKey key;
  uint32_t world = 0;
  uint64_t image_bytes = 0;
  uint64_t digest = 0;

  /// Returns DataLoss when the seal is of another shard, or of other bytes than were committed.
  Status Check(const ShardSeal& seal) const;
};

/// One shard of a version, and the replica to read.
struct ShardSource {
  ExpectedShard expected;
  Tier tier = Tier::kDisk;
  std::string node;  // or the data directory
  std::string address;
  std::vector<size_t> volumes;  // offline: volumes that have it
  /// No replica is read: the shard is decoded from its parity group. `node` is then "parity group",
  /// and the tier is peer.
  bool decoded = false;
};

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

/// A source of shards. Several threads may read concurrently. Every chunk is compared with the seal
/// before the sink gets it.
class RestoreSource {
 public:
  virtual ~RestoreSource() = default;
  virtual Result<RestorePlan> Plan(const std::string& job, VersionId version) = 0;
  virtual Status ReadShard(const ShardSource& shard, ShardSink& sink) = 0;
  /// Reads only the image bytes [offset, offset + bytes), in complete chunks. `offset` is a chunk's
  /// first byte.
  virtual Status ReadPart(const ShardSource& shard, uint64_t offset, uint64_t bytes,
                          ShardSink& sink) = 0;
  /// Returns the next replica of the same shard after `failed`, finally its parity group. NotFound:
  /// there is no other.
  virtual Result<ShardSource> NextReplica(const ShardSource& failed) = 0;
};

/// Runs `read` on `shard`. When it fails and another replica may help, reports this on stderr, sets
/// `shard` to the next replica and tries again. `failed` undoes the effects of a failed read.
Status ReadAnyReplica(RestoreSource& source, ShardSource& shard, Progress& progress,
                      const std::function<Status()>& read, const std::function<void()>& failed);

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
