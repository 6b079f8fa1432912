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

/// The contents of a volume.
struct Inventory {
  std::map<ShardKey, StoredShard> shards;
  /// Shards that a newer Holdfast wrote or that cannot be read now. Neither offered nor deleted.
  std::set<ShardKey> untouchable;
};

/// Scans the data directories and classifies their entries: published shards, files that were never
/// published, and damaged or unknown entries. CleanUp() then removes or quarantines all but the
/// first. After a crash at any point, the next run reaches the same result.
class Recovery {
 public:
  explicit Recovery(const std::vector<std::unique_ptr<Directory>>& dirs) : dirs_(dirs) {}

  /// Reads the directories and changes nothing. An error means that a directory cannot be listed.
  Status Scan();
  /// Quarantines and drops entries and finishes removals. Then makes the listed shards durable,
  /// because the process that published them may have ended before its last sync. Failures to clean
  /// up are logged and retried at the next start.
  Status CleanUp();
  /// Makes Scan() list damaged shards, too, for read-only use without CleanUp().
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
  /// An entry to move or delete, by its path in data directory `index`.
  struct Unwanted {
    uint32_t index = 0;
    std::string path;
    std::string why;
  };

  Status ScanRoot(uint32_t index);
  Status ScanJob(uint32_t index, const std::string& job);
  Status ScanVersion(uint32_t index, const std::string& job, VersionId version);
  /// Classifies the files of one rank, from all data directories: keep, drop or quarantine.
  void Decide(const ShardKey& key, const std::vector<FoundFile>& files);
  void DecideSealed(const ShardKey& key, const std::vector<FoundFile>& files);
  void PlanQuarantine(uint32_t index, std::string path, std::string why);
  void PlanDrop(uint32_t index, std::string path);
  std::string Absolute(uint32_t index, const std::string& path) const;
  void Quarantine();
  void Drop();
  void RemoveEmptyDirectories();
  /// Makes the directory entries of all listed shards durable.
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
