#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/mutex.h"
#include "storage/io/block_file.h"

namespace holdfast {

/// Makes the directories shards are written into, and remembers which of their entries are known to
/// be durable, so that only the first shard of a version pays for syncing them. Thread-safe.
class DurableDirectories {
 public:
  /// `dirs` outlives this.
  explicit DurableDirectories(const std::vector<std::unique_ptr<Directory>>& dirs) : dirs_(dirs) {}

  /// Makes `job` and the version's directory `version_path` beneath it in data directory `index`
  /// where they are missing. Not durable yet.
  Status Make(uint32_t index, const std::string& job, const std::string& version_path);
  /// The entries of both are durable on return.
  Status Sync(uint32_t index, const std::string& job, const std::string& version_path);
  /// The version's directories are about to go away: nothing is known about them any more.
  void Forget(const std::string& version_path);

 private:
  /// Syncs `parent` unless the entry `child` in it is known to be durable.
  Status SyncEntry(uint32_t index, const std::string& parent, const std::string& child);

  const std::vector<std::unique_ptr<Directory>>& dirs_;
  Mutex mutex_;
  std::set<std::pair<uint32_t, std::string>> durable_ HOLDFAST_GUARDED_BY(mutex_);
  uint64_t forgotten_ HOLDFAST_GUARDED_BY(mutex_) = 0;
};

}  // namespace holdfast
