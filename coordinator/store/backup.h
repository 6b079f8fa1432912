#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/store/meta_store.h"
#include "coordinator/store/rocks_store.h"

namespace holdfast::coord {

/// Added to the epoch of a copy. Agents of releases without lives compare epochs only: the copy's
/// epoch is then above all that they have seen, and they accept its coordinator.
inline constexpr uint64_t kBackupEpochs = 1'000'000;

struct BackupCounts {
  uint64_t records = 0;
  uint64_t bytes = 0;  // of keys and values
};

/// Returns the number of records and their bytes.
BackupCounts CountOf(const std::vector<KeyValue>& records);

/// Reads all records of the embedded store in `dir`, as of one moment. Another process may write to
/// the store meanwhile. NotFound if there is no store.
Result<std::vector<KeyValue>> ReadRecords(const std::string& dir);
/// Reads all records of `store`. NotFound if the store has none.
Result<std::vector<KeyValue>> ReadRecords(MetaStore& store);

/// Writes records into a backup: a folder with an embedded store in its folder `metadata`, which is
/// used as the data_dir of a coordinator. Until Publish() the folder has another name, so a backup
/// that was interrupted is not taken for a complete one. Thread-compatible.
class BackupWriter {
 public:
  /// Begins a backup in `dir`, which must be absent or an empty folder. FailedPrecondition if it is
  /// not.
  static Result<BackupWriter> Make(std::string dir);
  BackupWriter(BackupWriter&& other) noexcept;
  BackupWriter& operator=(BackupWriter&&) = delete;
  /// Removes the unfinished folder.
  ~BackupWriter();

  /// Returns the name of the folder until Publish().
  const std::string& unfinished() const { return unfinished_; }
  Status Add(const std::vector<KeyValue>& records);
  /// Gives the copy a new life, and the folder its name. The backup is durable on return.
  /// DataLoss if other records were added than `expected`.
  Result<BackupCounts> Publish(const BackupCounts& expected);

 private:
  BackupWriter(std::string dir, std::string unfinished, std::unique_ptr<RocksStore> store)
      : dir_(std::move(dir)), unfinished_(std::move(unfinished)), store_(std::move(store)) {}

  std::string dir_;
  std::string unfinished_;  // empty: published
  std::unique_ptr<RocksStore> store_;
  BackupCounts counts_;
};

/// Writes a backup with these records into `dir`; see BackupWriter.
Result<BackupCounts> WriteBackup(const std::vector<KeyValue>& records, const std::string& dir);

}  // namespace holdfast::coord
