#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "storage/io/block_file.h"

namespace holdfast {

/// Makes the directories of versions and records which of their entries are known to be durable, so
/// that only the first shard of a version has to sync them. Thread-safe.
class DurableDirectories {
 public:
  /// `dirs` must outlive this object.
  explicit DurableDirectories(const std::vector<std::unique_ptr<Directory>>& dirs) : dirs_(dirs) {}

  /// Makes `job` and the version's directory `version_path` beneath it in data directory `index`
  /// where they are missing. They are not durable yet. The group of `access` may list both.
  Status Make(uint32_t index, const std::string& job, const std::string& version_path,
              const FileAccess& access);
  /// Makes the entries of both directories durable.
  Status Sync(uint32_t index, const std::string& job, const std::string& version_path);
  /// Drops the record of a version's directories. Call it when they are removed.
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
