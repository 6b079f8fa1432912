#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/agent_client.h"
#include "client/cli/command.h"
#include "client/cli/progress.h"
#include "storage/base/ids.h"

// The shards of one version, wherever they are: for the commands that read all of it.

namespace holdfast::cli {

/// What a shard must be.
struct ExpectedShard {
  ShardKey key;
  uint32_t world = 0;
  uint64_t image_bytes = 0;
  uint64_t digest = 0;

  /// DataLoss when the seal is of another shard, or of other bytes than were committed.
  Status Check(const ShardSeal& seal) const;
};

/// One shard of a version, and the copy it is read from.
struct ShardSource {
  ExpectedShard expected;
  Tier tier = Tier::kDisk;
  std::string node;  // or the data directory
  std::string address;
  std::vector<size_t> volumes;  // offline: who holds it
  /// No copy is read: its parity group decodes it. `node` says so then, and the tier is peer.
  bool decoded = false;
};

/// A version that can be read, and where from.
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

/// Where shards come from. The reads may be called by several threads at once; what they hand to
/// the sink was checked against the seal, chunk by chunk.
class RestoreSource {
 public:
  virtual ~RestoreSource() = default;
  virtual Result<RestorePlan> Plan(const std::string& job, VersionId version) = 0;
  virtual Status ReadShard(const ShardSource& shard, ShardSink& sink) = 0;
  /// Only the image bytes [offset, offset + bytes), from a chunk's first byte on, in whole chunks.
  virtual Status ReadPart(const ShardSource& shard, uint64_t offset, uint64_t bytes,
                          ShardSink& sink) = 0;
  /// Another copy of the same shard, when this one failed, or in the end its parity group; NotFound
  /// when there is none.
  virtual Result<ShardSource> Another(const ShardSource& failed) = 0;
};

/// Runs `read` on `shard` and, when that fails so that another copy may help, on the next one,
/// which `shard` then names and stderr, too. `failed` undoes what a failed read has done.
Status ReadAnyCopy(RestoreSource& source, ShardSource& shard, Progress& progress,
                   const std::function<Status()>& read, const std::function<void()>& failed);

/// Which version, and where from: the options that such commands have in common.
class SourceOptions {
 public:
  void AddTo(CLI::App& command);

  bool offline() const { return !dirs_.empty(); }
  /// Opens it and chooses the version.
  Result<std::unique_ptr<RestoreSource>> Open(Context& context, const std::string& job,
                                              RestorePlan* plan) const;
  /// Data directories do not say what was committed: says on stderr which version was taken.
  void SayWhatWasChosen(const RestorePlan& plan) const;
  /// The heading of the column that says where a shard lies, and its key in JSON.
  const char* place_title() const { return offline() ? "DATA DIR" : "NODE"; }
  const char* place_key() const { return offline() ? "data_dir" : "node"; }

 private:
  std::string version_;
  std::string tier_;
  std::vector<std::string> dirs_;
};

}  // namespace holdfast::cli
