#include "storage/remote/remote_directory.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/job_name.h"
#include "base/log.h"
#include "storage/volume/durable_directories.h"
#include "storage/volume/layout.h"
#include "storage/volume/marker.h"
#include "storage/volume/quarantine.h"
#include "storage/volume/removal.h"
#include "storage/volume/shard_reader.h"
#include "storage/volume/shard_writer.h"

namespace holdfast {
namespace {

class RealRoot final : public SharedRoot {
 public:
  RealRoot(std::string path, const IoOptions& io) : path_(std::move(path)), io_(io) {}

  Result<std::unique_ptr<Directory>> Open(const std::string& name, bool make) override {
    struct stat info {};
    if (::stat(path_.c_str(), &info) != 0) {
      return Fail(UnavailableError(
          ErrnoStatus(errno, path_).message() +
          ": make the directory, or check that its file system is mounted on this node"));
    }
    if (!S_ISDIR(info.st_mode)) return Fail(UnavailableError(path_ + " is not a directory"));
    const std::string path = path_ + "/" + name;
    if (::stat(path.c_str(), &info) != 0) {
      if (errno != ENOENT) return Fail(ErrnoStatus(errno, path));
      if (!make) return Fail(NotFoundError(path + " does not exist"));
    }
    return OpenDirectory(path, io_);
  }

 private:
  const std::string path_;
  const IoOptions io_;
};

Status Named(const Status& status) { return status.ok() ? status : status.WithContext("remote"); }

}  // namespace

std::unique_ptr<SharedRoot> FileSystemRoot(const std::string& path, const IoOptions& io) {
  return std::make_unique<RealRoot>(path, io);
}

struct RemoteDirectory::Opened {
  /// Nothing else in this process removes a version that is being written, and the coordinator
  /// orders the other nodes: a writer of a removed version fails at its renames.
  class Gate final : public PublishGate {
   public:
    Status CheckNotRemoved(const ShardKey&) override { return Status::Ok(); }
    Status Begin(const ShardKey&) override { return Status::Ok(); }
    void End(const ShardKey&, const StoredShard*) override {}
    void Closed(const ShardKey&) override {}
  };

  DirectoryList dirs;  // one
  Gate gate;
};

namespace {
/// Keeps the opened directory as long as its writer.
class RemoteWriter final : public ShardWriter {
 public:
  RemoteWriter(std::shared_ptr<void> keeps, std::unique_ptr<DurableDirectories> directories,
               std::unique_ptr<VolumeShardWriter> writer)
      : keeps_(std::move(keeps)),
        directories_(std::move(directories)),
        writer_(std::move(writer)) {}

  Status Advance(uint64_t ready_bytes) override { return Named(writer_->Advance(ready_bytes)); }
  Result<std::vector<std::pair<uint64_t, uint64_t>>> Settle() override {
    auto written = writer_->Settle();
    if (!written) return Fail(Named(written.error()));
    return written;
  }
  Status Publish(ShardSeal seal) override { return Named(writer_->Publish(std::move(seal))); }

 private:
  const std::shared_ptr<void> keeps_;
  const std::unique_ptr<DurableDirectories> directories_;
  const std::unique_ptr<VolumeShardWriter> writer_;
};

class RemoteChunks final : public ShardChunks {
 public:
  RemoteChunks(std::shared_ptr<void> keeps, std::unique_ptr<ShardChunks> chunks)
      : keeps_(std::move(keeps)), chunks_(std::move(chunks)) {}

  const ShardSeal& seal() const override { return chunks_->seal(); }
  Result<std::span<const std::byte>> Read(uint64_t index) override {
    auto chunk = chunks_->Read(index);
    if (!chunk) return Fail(Named(chunk.error()));
    return chunk;
  }

 private:
  const std::shared_ptr<void> keeps_;
  const std::unique_ptr<ShardChunks> chunks_;
};

/// Removes what an interrupted writer of the same shard left. The coordinator orders one writer of
/// a shard at a time.
Status RemoveUnfinished(Directory& dir, const ShardIdentity& identity) {
  const std::string path = VersionPath(identity.job, identity.version);
  auto entries = dir.List(path);
  if (!entries) {
    return entries.error().code() == ErrorCode::kNotFound ? Status::Ok() : entries.error();
  }
  for (const DirectoryEntry& entry : *entries) {
    const auto name = ParseShardFileName(entry.name);
    if (!name || !name->temporary || name->rank != identity.rank) continue;
    const Status removed = dir.RemoveFile(path + "/" + entry.name);
    if (!removed.ok() && removed.code() != ErrorCode::kNotFound) return removed;
  }
  return Status::Ok();
}
}  // namespace

RemoteDirectory::RemoteDirectory(std::unique_ptr<SharedRoot> root, RemoteOptions options,
                                 Clock& clock)
    : root_(std::move(root)),
      options_(std::move(options)),
      access_(options_.access),
      clock_(clock) {}

RemoteDirectory::~RemoteDirectory() = default;

void RemoteDirectory::SetLife(LifeId life) {
  MutexLock lock(mutex_);
  if (life == life_) return;
  life_ = life;
  opened_.reset();
  was_there_ = false;
}

Result<RemoteDirectory::OpenedPtr> RemoteDirectory::Open(bool make) const {
  LifeId life;
  bool was_there = false;
  {
    MutexLock lock(mutex_);
    if (opened_ != nullptr) return opened_;
    life = life_;
    was_there = was_there_;
  }
  if (life.value == 0) {
    return Fail(UnavailableError("remote: the coordinator has not named its store yet"));
  }
  const std::string name = options_.cluster + "-" + ToString(life);
  auto dir = root_->Open(name, make && !was_there);
  if (!dir && dir.error().code() == ErrorCode::kNotFound) {
    return Fail(UnavailableError("remote: " + dir.error().message() +
                                 (was_there ? ", but it was there before: mount its file system, "
                                              "or restart the agent to make an empty one"
                                            : ": is its file system mounted?")));
  }
  if (!dir) return Fail(Named(dir.error()));
  auto opened = std::make_shared<Opened>();
  opened->dirs.push_back(*std::move(dir));
  Directory& root = *opened->dirs[0];
  if (!make || was_there) {
    // The mount point of a file system that is not mounted is an empty directory.
    if (!root.ReadSmallFile(std::string(kMarkerName), 4096)) {
      return Fail(UnavailableError("remote: " + root.path() +
                                   " has no marker: is its file system mounted?"));
    }
  }
  HOLDFAST_RETURN_IF_ERROR(Named(
      ClaimShared(root, options_.cluster, std::string(kSharedVolumePrefix) + ToString(life))));
  MutexLock lock(mutex_);
  if (life != life_) return Fail(UnavailableError("remote: the life of the store has changed"));
  opened_ = opened;
  was_there_ = true;
  return opened;
}

Status RemoteDirectory::Check(const OpenedPtr& used, Status status) const {
  const bool of_shard = status.ok() || status.code() == ErrorCode::kDataLoss ||
                        status.code() == ErrorCode::kAlreadyExists;
  if (!of_shard) {
    MutexLock lock(mutex_);
    if (opened_ == used) opened_.reset();
  }
  return Named(status);
}

Result<RemoteDirectory::Found> RemoteDirectory::Find(const ShardKey& key) const {
  HOLDFAST_RETURN_IF_ERROR(ValidateJobName(key.job));
  // A handle may be stale, and in a directory that was removed or unmounted it finds no shard. Only
  // a new handle shows whether the shard is gone.
  Status failed;
  for (int attempt = 0; attempt < 2; ++attempt) {
    HOLDFAST_ASSIGN_OR_RETURN(OpenedPtr opened, Open(/*make=*/false));
    auto seal = LoadSeal(opened->dirs, key);
    if (seal) return Found{std::move(opened), *std::move(seal)};
    failed = Check(opened, seal.error());
    if (failed.code() == ErrorCode::kDataLoss) break;
  }
  return Fail(failed);
}

Result<std::unique_ptr<ShardWriter>> RemoteDirectory::CreateShard(
    const ShardIdentity& identity, std::span<const std::byte> image) {
  HOLDFAST_RETURN_IF_ERROR(ValidateJobName(identity.job));
  if (identity.world > kWorldMax || !RankInWorld(identity.rank, identity.world)) {
    return Fail(InvalidArgumentError(
        fmt::format("rank {} is not in a world of {}", identity.rank.value, identity.world)));
  }
  if (image.empty() || reinterpret_cast<uintptr_t>(image.data()) % kBlockBytes != 0) {
    return Fail(InvalidArgumentError(
        fmt::format("the image of {} is empty or not aligned", ToString(identity.key()))));
  }
  HOLDFAST_ASSIGN_OR_RETURN(OpenedPtr opened, Open(/*make=*/true));
  auto seal = LoadSeal(opened->dirs, identity.key());
  if (seal)
    return Fail(AlreadyExistsError("remote: " + ToString(identity.key()) + " is published"));
  if (seal.error().code() != ErrorCode::kNotFound) return Fail(Check(opened, seal.error()));
  HOLDFAST_RETURN_IF_ERROR(Check(opened, RemoveUnfinished(*opened->dirs[0], identity)));
  auto directories = std::make_unique<DurableDirectories>(opened->dirs);
  const uint64_t unit =
      std::max(RoundDownTo(options_.io.operation_bytes, kBlockBytes), kBlockBytes);
  const WriterContext context{opened->dirs, *directories, opened->gate, clock_, access_, unit};
  auto writer = std::make_unique<VolumeShardWriter>(context, identity, image);
  HOLDFAST_RETURN_IF_ERROR(Check(opened, writer->Start()));
  return std::make_unique<RemoteWriter>(opened, std::move(directories), std::move(writer));
}

Result<std::vector<StoredShard>> RemoteDirectory::ListJob(const std::string& job) const {
  HOLDFAST_RETURN_IF_ERROR(ValidateJobName(job));
  HOLDFAST_ASSIGN_OR_RETURN(const OpenedPtr opened, Open(/*make=*/false));
  Directory& dir = *opened->dirs[0];
  std::vector<StoredShard> shards;
  auto versions = dir.List(job);
  if (!versions) {
    if (versions.error().code() == ErrorCode::kNotFound) return shards;
    return Fail(Check(opened, versions.error()));
  }
  for (const DirectoryEntry& entry : *versions) {
    const auto version = ParseVersionDirectoryName(entry.name);
    if (!entry.is_directory || !version || version->tombstone) continue;
    auto files = dir.List(job + "/" + entry.name);
    if (!files && files.error().code() == ErrorCode::kNotFound) continue;  // removed meanwhile
    if (!files) return Fail(Check(opened, files.error()));
    for (const DirectoryEntry& file : *files) {
      const auto name = ParseShardFileName(file.name);
      if (!name || !name->seal || name->temporary) continue;
      const auto seal = LoadSeal(opened->dirs, {job, version->version, name->rank});
      // A damaged seal is found again by who reads the shard.
      if (!seal) continue;
      shards.push_back({seal->identity, seal->image_bytes, seal->digest(),
                        static_cast<uint32_t>(seal->parts.size()), seal->life});
    }
  }
  std::sort(shards.begin(), shards.end(), [](const StoredShard& a, const StoredShard& b) {
    return a.identity.key() < b.identity.key();
  });
  return shards;
}

Result<ShardSeal> RemoteDirectory::ReadSeal(const ShardKey& key) const {
  HOLDFAST_ASSIGN_OR_RETURN(Found found, Find(key));
  return std::move(found.seal);
}

Result<std::unique_ptr<ShardChunks>> RemoteDirectory::OpenChunks(const ShardKey& key) const {
  HOLDFAST_ASSIGN_OR_RETURN(Found found, Find(key));
  auto chunks = OpenShardChunks(found.opened->dirs, std::move(found.seal));
  if (!chunks) return Fail(Check(found.opened, chunks.error()));
  return std::make_unique<RemoteChunks>(found.opened, *std::move(chunks));
}

Status RemoteDirectory::VerifyShard(const ShardKey& key, bool deep) const {
  HOLDFAST_ASSIGN_OR_RETURN(const Found found, Find(key));
  const DirectoryList& dirs = found.opened->dirs;
  return Check(found.opened,
               deep ? CheckDeep(dirs, found.seal, options_.io) : CheckStructure(dirs, found.seal));
}

Status RemoteDirectory::RemoveVersion(const std::string& job, VersionId version) {
  HOLDFAST_RETURN_IF_ERROR(ValidateJobName(job));
  HOLDFAST_ASSIGN_OR_RETURN(const OpenedPtr opened, Open(/*make=*/false));
  Directory& dir = *opened->dirs[0];
  std::vector<Tombstone> tombstones;
  const Status made = MakeTombstones(opened->dirs, job, version, &tombstones);
  // Also deletes what an interrupted removal left. Several nodes may delete the same directory.
  auto entries = dir.List(job);
  if (!entries && entries.error().code() == ErrorCode::kNotFound) return Named(made);
  if (!entries) return Check(opened, entries.error());
  for (const DirectoryEntry& entry : *entries) {
    const auto name = ParseVersionDirectoryName(entry.name);
    if (!entry.is_directory || !name || !name->tombstone || name->version != version) continue;
    const Status deleted = DeleteTombstone(dir, job + "/" + entry.name);
    if (!deleted.ok() && deleted.code() != ErrorCode::kNotFound) return Check(opened, deleted);
  }
  return Check(opened, made);
}

Status RemoteDirectory::Quarantine(const ShardKey& key, const std::string& why) {
  HOLDFAST_RETURN_IF_ERROR(ValidateJobName(key.job));
  HOLDFAST_ASSIGN_OR_RETURN(const OpenedPtr opened, Open(/*make=*/false));
  const Status moved = QuarantineShard(opened->dirs, key);
  Log(LogLevel::kWarn, "RemoteShardQuarantined",
      {Kv("shard", ToString(key)), Kv("why", why), Kv("status", moved.ToString())});
  return Check(opened, moved);
}

}  // namespace holdfast
