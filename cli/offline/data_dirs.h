#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "storage/volume/volume.h"

namespace holdfast::cli {

/// A seal that exists but cannot be read.
struct DamagedSeal {
  std::string path;
  std::string job;
  VersionId version;
  Rank rank;
  Status error;
};

/// One node's volume, opened read-only.
struct OfflineVolume {
  std::vector<std::string> dirs;
  std::string cluster;
  std::unique_ptr<Volume> volume;
  std::vector<StoredShard> shards;
  std::vector<DamagedSeal> damaged;
  /// Shards with data under its final name but no seal: the seal was lost, or a crash interrupted
  /// the publishing just before it.
  std::set<ShardKey> unsealed;
  std::vector<std::string> leftovers;  // unpublished files: not part of a version, no damage

  /// Returns the path of the shard's seal in the first data directory, for messages.
  std::string PathOf(const ShardKey& key) const;
};

/// A version as found in data directories: its ranks and the volumes that have them.
struct OfflineVersion {
  std::string job;
  VersionId version;
  uint32_t world = 0;
  std::map<uint32_t, std::vector<size_t>> ranks;  // rank → volumes that hold it
  uint64_t bytes = 0;
  bool complete() const { return world > 0 && ranks.size() == world; }
};

/// Opens the data directories of one or more nodes. Directories of the same volume are combined by
/// their markers, in the volume's order. FailedPrecondition: a directory is not a data directory,
/// or a directory of a volume is missing in `dirs`.
Result<std::vector<OfflineVolume>> OpenDataDirs(const std::vector<std::string>& dirs, Clock& clock);

/// Returns whether `dir` has a data directory's marker.
bool IsDataDir(const std::string& dir);

/// Returns all versions, newest first within a job. `job` empty: all jobs. DataLoss: shards of one
/// version have different worlds.
Result<std::vector<OfflineVersion>> VersionsOf(const std::vector<OfflineVolume>& volumes,
                                               const std::string& job);

/// Reads a complete file of at most `bytes_max` bytes. NotFound, PermissionDenied and other errors
/// of the system.
Result<std::string> ReadWholeFile(const std::string& path, uint64_t bytes_max);

}  // namespace holdfast::cli
