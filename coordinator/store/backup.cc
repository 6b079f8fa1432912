#include "coordinator/store/backup.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/crash_point.h"
#include "base/fd.h"
#include "base/random.h"
#include "coordinator/store/record_codec.h"

namespace holdfast::coord {
namespace {
namespace fs = std::filesystem;
// A live store may delete a file during the read; then the complete read starts again.
constexpr int kReadAttempts = 5;
constexpr size_t kNameBytes = 4;  // of the random part of an unfinished folder's name

/// Syncs a file or a folder.
Status SyncPath(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "open " + path);
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, "fsync " + path);
  return Status::Ok();
}

/// Syncs the files of the store in `dir`, and the folder itself.
Status SyncStore(const std::string& dir) {
  std::error_code error;
  fs::directory_iterator entry(dir, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    HOLDFAST_RETURN_IF_ERROR(SyncPath(entry->path().string()));
  }
  if (error) return ErrnoStatus(error.value(), "list " + dir);
  return SyncPath(dir);
}

Status NotFree(const std::string& dir) {
  return FailedPreconditionError(
      fmt::format("{} is not an empty folder: give each backup a separate folder", dir));
}

std::string ParentOf(const std::string& dir) {
  const fs::path parent = fs::path(dir).parent_path();
  return parent.empty() ? "." : parent.string();
}
}  // namespace

BackupCounts CountOf(const std::vector<KeyValue>& records) {
  BackupCounts counts{records.size(), 0};
  for (const KeyValue& entry : records) counts.bytes += entry.key.size() + entry.value.size();
  return counts;
}

Result<std::vector<KeyValue>> ReadRecords(const std::string& dir) {
  for (int attempt = 1;; ++attempt) {
    HOLDFAST_ASSIGN_OR_RETURN(auto store, RocksStore::OpenReadOnly(dir));
    auto all = store->Range("");
    if (all || attempt == kReadAttempts) return all;
  }
}

Result<std::vector<KeyValue>> ReadRecords(MetaStore& store) {
  HOLDFAST_ASSIGN_OR_RETURN(std::vector<KeyValue> all, store.Range(""));
  if (all.empty()) return Fail(NotFoundError("the store has no records of this cluster"));
  return all;
}

Result<BackupWriter> BackupWriter::Make(std::string dir) {
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  std::error_code error;
  const bool there = fs::symlink_status(dir, error).type() != fs::file_type::not_found;
  if (there && (!fs::is_directory(dir, error) || !fs::is_empty(dir, error))) {
    return Fail(NotFree(dir));
  }
  std::string unfinished = fmt::format("{}.unfinished-{}", dir, RandomHex(kNameBytes));
  auto store = RocksStore::Open(unfinished + "/metadata");
  BackupWriter writer(std::move(dir), std::move(unfinished), nullptr);
  if (!store) return Fail(store.error());  // the writer removes what was made
  writer.store_ = *std::move(store);
  return writer;
}

BackupWriter::BackupWriter(BackupWriter&& other) noexcept
    : dir_(std::move(other.dir_)),
      unfinished_(std::exchange(other.unfinished_, "")),
      store_(std::move(other.store_)),
      counts_(other.counts_) {}

BackupWriter::~BackupWriter() {
  store_.reset();
  if (unfinished_.empty()) return;
  std::error_code ignored;
  fs::remove_all(unfinished_, ignored);
}

Status BackupWriter::Add(const std::vector<KeyValue>& records) {
  std::vector<Mutation> mutations;
  for (const KeyValue& entry : records) {
    mutations.push_back({entry.key, entry.value});
    if (entry.key != kEpochKey) continue;
    HOLDFAST_ASSIGN_OR_RETURN(const Epoch epoch, DecodeEpoch(entry.value));
    mutations.back().value = EncodeEpoch(Epoch{epoch.value + kBackupEpochs});
  }
  const auto written = store_->Commit({}, mutations);
  if (!written) return written.error();
  const BackupCounts more = CountOf(records);
  counts_.records += more.records;
  counts_.bytes += more.bytes;
  HOLDFAST_CRASH_POINT("backup.mid_write");
  return Status::Ok();
}

Result<BackupCounts> BackupWriter::Publish(const BackupCounts& expected) {
  if (counts_.records != expected.records || counts_.bytes != expected.bytes) {
    return Fail(DataLossError(
        fmt::format("{} records of {} bytes were received, and {} of {} were "
                    "announced: make the backup again",
                    counts_.records, counts_.bytes, expected.records, expected.bytes)));
  }
  const std::vector<Mutation> life = {{std::string(kLifeKey), EncodeLife(NewLife())}};
  HOLDFAST_ASSIGN_OR_RETURN([[maybe_unused]] const bool written, store_->Commit({}, life));
  store_.reset();
  HOLDFAST_RETURN_IF_ERROR(SyncStore(unfinished_ + "/metadata"));
  HOLDFAST_RETURN_IF_ERROR(SyncPath(unfinished_));
  HOLDFAST_CRASH_POINT("backup.before_rename");
  // An empty folder of that name is replaced. Nothing else is: the name may be taken meanwhile.
  if (::rename(unfinished_.c_str(), dir_.c_str()) != 0) {
    if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR) return Fail(NotFree(dir_));
    return Fail(ErrnoStatus(errno, fmt::format("rename {} to {}", unfinished_, dir_)));
  }
  unfinished_.clear();
  HOLDFAST_RETURN_IF_ERROR(SyncPath(ParentOf(dir_)));
  return counts_;
}

Result<BackupCounts> WriteBackup(const std::vector<KeyValue>& records, const std::string& dir) {
  HOLDFAST_ASSIGN_OR_RETURN(BackupWriter writer, BackupWriter::Make(dir));
  HOLDFAST_RETURN_IF_ERROR(writer.Add(records));
  return writer.Publish(CountOf(records));
}

}  // namespace holdfast::coord
