#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "storage/volume/volume.h"

namespace holdfast::cli {

/// A seal that is there and cannot be read.
struct DamagedSeal {
  std::string path;
  std::string job;
  VersionId version;
  Rank rank;
  Status error;
};

/// One node's volume, read only.
struct OfflineVolume {
  std::vector<std::string> dirs;
  std::string cluster;
  std::unique_ptr<Volume> volume;
  std::vector<StoredShard> shards;
  std::vector<DamagedSeal> damaged;
  /// Data under its final name without a seal: the shard was published once, or nearly.
  std::set<ShardKey> unsealed;
  std::vector<std::string> leftovers;  // unpublished files: never part of a version, never damage

  /// Where the shard lies, for people: its directory in every data directory that has it.
  std::string PathOf(const ShardKey& key) const;
};

/// A version as found in data directories: which ranks, and on which volume each lies.
struct OfflineVersion {
  std::string job;
  VersionId version;
  uint32_t world = 0;
  std::map<uint32_t, std::vector<size_t>> ranks;  // rank → volumes that hold it
  uint64_t bytes = 0;
  bool complete() const { return world > 0 && ranks.size() == world; }
};

/// Opens the data directories of one node or of several: directories of the same volume are put
/// together by their markers, in the volume's own order. FailedPrecondition for a directory that is
/// no data directory or a volume of which a directory is missing from `dirs`.
Result<std::vector<OfflineVolume>> OpenDataDirs(const std::vector<std::string>& dirs);

/// True when `dir` has a data directory's marker.
bool IsDataDir(const std::string& dir);

/// All versions, newest first within a job. `job` empty: all jobs. Shards of one version that speak
/// of different worlds are DataLoss.
Result<std::vector<OfflineVersion>> VersionsOf(const std::vector<OfflineVolume>& volumes,
                                               const std::string& job);

/// A whole file, refused beyond `bytes_max`. NotFound, PermissionDenied … as the system says.
Result<std::string> ReadWholeFile(const std::string& path, uint64_t bytes_max);

}  // namespace holdfast::cli
