#include "coordinator/store/backup.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "coordinator/store/record_codec.h"
#include "coordinator/store/rocks_store.h"

namespace holdfast::coord {
namespace {
// A live store may delete a file during the read; then the complete read starts again.
constexpr int kReadAttempts = 5;

Result<std::vector<KeyValue>> ReadWholeStore(const std::string& dir) {
  for (int attempt = 1;; ++attempt) {
    HOLDFAST_ASSIGN_OR_RETURN(auto store, RocksStore::OpenReadOnly(dir));
    auto all = store->Range("");
    if (all || attempt == kReadAttempts) return all;
  }
}

Result<BackupCounts> WriteBackup(const std::vector<KeyValue>& all, const std::string& to) {
  std::error_code error;
  if (std::filesystem::exists(to, error) && !std::filesystem::is_empty(to, error)) {
    return Fail(FailedPreconditionError(
        fmt::format("{} is not empty: give each backup a directory of its own", to)));
  }
  BackupCounts counts;
  std::vector<Mutation> mutations;
  for (const KeyValue& entry : all) {
    ++counts.records;
    counts.bytes += entry.key.size() + entry.value.size();
    mutations.push_back({entry.key, entry.value});
    if (entry.key == kEpochKey) {
      HOLDFAST_ASSIGN_OR_RETURN(const Epoch epoch, DecodeEpoch(entry.value));
      mutations.back().value = EncodeEpoch(Epoch{epoch.value + kBackupEpochs});
    }
  }
  mutations.push_back({std::string(kLifeKey), EncodeLife(NewLife())});
  HOLDFAST_ASSIGN_OR_RETURN(auto copy, RocksStore::Open(to));
  HOLDFAST_ASSIGN_OR_RETURN([[maybe_unused]] const bool written, copy->Commit({}, mutations));
  return counts;
}
}  // namespace

Result<BackupCounts> BackUpStore(const std::string& from, const std::string& to) {
  HOLDFAST_ASSIGN_OR_RETURN(const std::vector<KeyValue> all, ReadWholeStore(from));
  return WriteBackup(all, to);
}

Result<BackupCounts> BackUpStore(MetaStore& from, const std::string& to) {
  HOLDFAST_ASSIGN_OR_RETURN(const std::vector<KeyValue> all, from.Range(""));
  if (all.empty()) return Fail(NotFoundError("the store has no records of this cluster"));
  return WriteBackup(all, to);
}

}  // namespace holdfast::coord
