#include "coordinator/store/rocks_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/fd.h"

namespace holdfast::coord {
namespace {
Status ToStatus(const rocksdb::Status& status, const std::string& dir, std::string_view doing) {
  if (status.ok()) return Status::Ok();
  std::string text = fmt::format("metadata store {}: {}: {}", dir, doing, status.ToString());
  if (status.IsCorruption()) return DataLossError(std::move(text));
  if (status.IsNoSpace()) return OutOfSpaceError(std::move(text));
  return IoErrorError(std::move(text));
}

Status SyncDirectory(const std::string& dir) {
  UniqueFd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "open " + dir);
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, "fsync " + dir);
  return Status::Ok();
}

constexpr mode_t kStoreMode = 0700;

/// Creates `dir` and its parents, and makes each directory entry durable.
Status MakeDirectories(const std::filesystem::path& dir) {
  std::error_code error;
  if (std::filesystem::is_directory(dir, error)) return Status::Ok();
  if (dir.has_parent_path() && dir.parent_path() != dir) {
    HOLDFAST_RETURN_IF_ERROR(MakeDirectories(dir.parent_path()));
  }
  if (!std::filesystem::create_directory(dir, error) && error) {
    return ErrnoStatus(error.value(), "data_dir: mkdir " + dir.string());
  }
  return SyncDirectory(dir.has_parent_path() ? dir.parent_path().string() : ".");
}

/// Refuses a directory that is neither empty nor a RocksDB, so that the store never writes among
/// other files.
Status CheckOurs(const std::string& dir) {
  std::error_code error;
  if (std::filesystem::exists(dir + "/CURRENT", error)) return Status::Ok();
  std::filesystem::directory_iterator entry(dir, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool ours = name == "LOCK" || name == "LOG" || name == "IDENTITY" ||
                      name.starts_with("LOG.old") || name.starts_with("MANIFEST-") ||
                      name.ends_with(".log") || name.ends_with(".dbtmp");
    if (!ours) {
      return FailedPreconditionError(fmt::format(
          "{} is not empty and not a metadata store (it contains '{}'); choose an empty directory",
          dir, name));
    }
  }
  if (error) return ErrnoStatus(error.value(), "list " + dir);
  return Status::Ok();
}

rocksdb::Options StoreOptions() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.paranoid_checks = true;
  // A torn end of the log is an unfinished write. Damage anywhere before it must be an error.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.write_buffer_size = 4 << 20;  // small, since the metadata is small
  options.max_total_wal_size = 16 << 20;
  options.keep_log_file_num = 4;
  options.max_background_jobs = 2;
  options.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  return options;
}
}  // namespace

RocksStore::RocksStore(std::string dir, std::unique_ptr<rocksdb::DB> db)
    : dir_(std::move(dir)), db_(std::move(db)) {}

RocksStore::~RocksStore() = default;

Result<std::unique_ptr<RocksStore>> RocksStore::Open(const std::string& dir) {
  HOLDFAST_RETURN_IF_ERROR(MakeDirectories(dir));
  HOLDFAST_RETURN_IF_ERROR(CheckOurs(dir));
  // The store has the environments of runs, which may contain keys and tokens.
  if (::chmod(dir.c_str(), kStoreMode) != 0) return Fail(ErrnoStatus(errno, "chmod " + dir));
  rocksdb::DB* raw = nullptr;
  rocksdb::Status status = rocksdb::DB::Open(StoreOptions(), dir, &raw);
  std::unique_ptr<rocksdb::DB> db(raw);
  if (!status.ok()) {
    const std::string text = status.ToString();
    if (status.IsIOError() && text.find("lock") != std::string::npos) {
      return Fail(UnavailableError(fmt::format(
          "data_dir {} is in use by another coordinator; stop it or choose another data_dir ({})",
          dir, text)));
    }
    return Fail(ToStatus(status, dir, "open"));
  }
  HOLDFAST_RETURN_IF_ERROR(SyncDirectory(dir));
  return std::unique_ptr<RocksStore>(new RocksStore(dir, std::move(db)));
}

Result<std::unique_ptr<RocksStore>> RocksStore::OpenReadOnly(const std::string& dir) {
  std::error_code error;
  if (!std::filesystem::exists(dir + "/CURRENT", error)) {
    return Fail(NotFoundError(dir + " holds no metadata store"));
  }
  rocksdb::DB* raw = nullptr;
  rocksdb::Options options = StoreOptions();
  options.create_if_missing = false;
  rocksdb::Status status = rocksdb::DB::OpenForReadOnly(options, dir, &raw);
  std::unique_ptr<rocksdb::DB> db(raw);
  HOLDFAST_RETURN_IF_ERROR(ToStatus(status, dir, "open for reading"));
  return std::unique_ptr<RocksStore>(new RocksStore(dir, std::move(db)));
}

Result<std::optional<std::string>> RocksStore::Get(std::string_view key) {
  std::string value;
  rocksdb::Status status = db_->Get({}, rocksdb::Slice(key.data(), key.size()), &value);
  if (status.IsNotFound()) return std::optional<std::string>();
  HOLDFAST_RETURN_IF_ERROR(ToStatus(status, dir_, "get"));
  return std::optional<std::string>(std::move(value));
}

Result<std::vector<KeyValue>> RocksStore::Range(std::string_view prefix) {
  std::vector<KeyValue> found;
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator({}));
  const rocksdb::Slice start(prefix.data(), prefix.size());
  for (it->Seek(start); it->Valid() && it->key().starts_with(start); it->Next()) {
    found.push_back({it->key().ToString(), it->value().ToString()});
  }
  HOLDFAST_RETURN_IF_ERROR(ToStatus(it->status(), dir_, "range"));
  return found;
}

Result<bool> RocksStore::Commit(std::span<const Compare> compares,
                                std::span<const Mutation> mutations) {
  if (failed_) {
    return Fail(IoErrorError(
        fmt::format("metadata store {}: an earlier write failed; open it again", dir_)));
  }
  for (const Compare& compare : compares) {
    HOLDFAST_ASSIGN_OR_RETURN(auto value, Get(compare.key));
    if (value != compare.value) return false;
  }
  rocksdb::WriteBatch batch;
  for (const Mutation& mutation : mutations) {
    rocksdb::Status status =
        mutation.value ? batch.Put(mutation.key, *mutation.value) : batch.Delete(mutation.key);
    HOLDFAST_RETURN_IF_ERROR(ToStatus(status, dir_, "batch"));
  }
  rocksdb::WriteOptions synced;
  synced.sync = true;
  Status status = ToStatus(db_->Write(synced, &batch), dir_, "write");
  failed_ = !status.ok();
  HOLDFAST_RETURN_IF_ERROR(std::move(status));
  return true;
}

}  // namespace holdfast::coord
