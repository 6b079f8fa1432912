#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "storage/io/block_file.h"
#include "storage/volume/layout.h"
#include "storage/volume/removal.h"
#include "storage/volume/volume.h"

namespace holdfast {

/// What a volume holds.
struct Inventory {
  std::map<ShardKey, StoredShard> shards;
  /// Written by a newer Holdfast, or unreadable for now: neither offered nor deleted.
  std::set<ShardKey> untouchable;
};

/// Looks at everything in the data directories and decides what is a published shard, what was
/// never published, and what is damaged or unknown. Then, unless told otherwise, cleans up. A crash
/// at any point of it leaves something that the next run brings to the same end.
class Recovery {
 public:
  explicit Recovery(const std::vector<std::unique_ptr<Directory>>& dirs) : dirs_(dirs) {}

  /// Reads only. An error means that a directory or its listing cannot be read.
  Status Scan();
  /// Quarantines, drops, finishes removals; then makes durable what is listed, because the process
  /// that published it may have died before its last sync. Trouble with cleaning up is logged and
  /// left for the next time.
  Status CleanUp();
  /// Lists damaged shards too instead of planning to quarantine them: for reading only.
  void KeepDamaged() { keep_damaged_ = true; }

  Inventory TakeInventory() { return std::move(inventory_); }
  RecoveryReport TakeReport() { return std::move(report_); }

 private:
  struct FoundFile {
    uint32_t index = 0;
    std::string name;
    ShardFileName parsed;
    uint64_t bytes = 0;
  };
  using RankFiles = std::map<Rank, std::vector<FoundFile>>;
  /// Something to move or delete, by its path in data directory `index`.
  struct Unwanted {
    uint32_t index = 0;
    std::string path;
    std::string why;
  };

  Status ScanRoot(uint32_t index);
  Status ScanJob(uint32_t index, const std::string& job);
  Status ScanVersion(uint32_t index, const std::string& job, VersionId version);
  /// Sorts the files of one rank, from all data directories, into what to keep, drop and move.
  void Decide(const ShardKey& key, const std::vector<FoundFile>& files);
  void DecideSealed(const ShardKey& key, const std::vector<FoundFile>& files);
  void PlanQuarantine(uint32_t index, std::string path, std::string why);
  void PlanDrop(uint32_t index, std::string path);
  std::string Absolute(uint32_t index, const std::string& path) const;
  void Quarantine();
  void Drop();
  void RemoveEmptyDirectories();
  /// Makes the entries of everything listed durable.
  Status SyncPublished();

  const std::vector<std::unique_ptr<Directory>>& dirs_;
  bool keep_damaged_ = false;
  std::map<std::pair<std::string, VersionId>, RankFiles> found_;
  std::vector<Unwanted> to_quarantine_;
  std::vector<Unwanted> to_drop_;
  std::vector<Tombstone> tombstones_;
  std::set<std::pair<uint32_t, std::string>> version_paths_;
  std::set<std::pair<uint32_t, std::string>> job_paths_;
  Inventory inventory_;
  RecoveryReport report_;
};

}  // namespace holdfast
