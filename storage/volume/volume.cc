#include "storage/volume/volume.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/crash_point.h"
#include "base/log.h"
#include "storage/volume/chunk_rewrite.h"
#include "storage/volume/directory_lock.h"
#include "storage/volume/durable_directories.h"
#include "storage/volume/layout.h"
#include "storage/volume/marker.h"
#include "storage/volume/quarantine.h"
#include "storage/volume/recovery.h"
#include "storage/volume/removal.h"
#include "storage/volume/shard_reader.h"
#include "storage/volume/shard_writer.h"

namespace holdfast {
namespace {

/// The implementation of Volume: keeps the list of published shards, and ensures that no shard of a
/// version is published while the version is removed. Writer, reader, removal and recovery handle
/// the files. Thread-safe.
class DiskVolume final : public Volume, private PublishGate {
 public:
  DiskVolume(DirectoryList dirs, DirectoryLock lock, const IoOptions& io, JobAccess access,
             Clock& clock, bool read_only)
      : dirs_(std::move(dirs)),
        lock_(std::move(lock)),
        io_(io),
        access_(std::move(access)),
        clock_(clock),
        read_only_(read_only),
        directories_(dirs_) {}

  Status Recover();

  const RecoveryReport& recovery() const override { return report_; }
  Result<std::unique_ptr<ShardWriter>> CreateShard(const ShardIdentity& identity,
                                                   std::span<const std::byte> image) override;
  std::vector<StoredShard> List() const override;
  Result<ShardSeal> ReadSeal(const ShardKey& key) const override;
  Result<ShardSeal> ReadShard(const ShardKey& key, std::span<std::byte> into,
                              const std::function<void(uint64_t)>& progress) const override;
  Status StreamShard(
      const ShardSeal& seal,
      const std::function<Status(uint64_t, std::span<const std::byte>)>& sink) const override;
  Result<std::unique_ptr<ShardChunks>> OpenChunks(const ShardKey& key) const override;
  Status VerifyShard(const ShardKey& key, bool deep) const override;
  Status RewriteChunk(const ShardKey& key, uint64_t index,
                      std::span<const std::byte> bytes) override;
  Status RemoveVersion(const std::string& job, VersionId version) override;
  Status Quarantine(const ShardKey& key, const std::string& why) override;
  uint64_t QuarantinedFiles() const override;
  uint64_t FreeBytes() const override;
  Result<SeenLife> ReadLife() const override { return ReadSeenLife(*dirs_[0]); }
  Status WriteLife(const SeenLife& seen) override {
    HOLDFAST_RETURN_IF_ERROR(CheckWritable());
    return WriteSeenLife(*dirs_[0], seen);
  }
  Result<std::vector<VersionCommit>> ReadCommits() const override {
    return holdfast::ReadCommits(*dirs_[0]);
  }
  Status WriteCommits(const std::vector<VersionCommit>& commits) override {
    HOLDFAST_RETURN_IF_ERROR(CheckWritable());
    return holdfast::WriteCommits(*dirs_[0], commits);
  }
  void RegisterMemory(std::span<std::byte> memory) override {
    for (const auto& dir : dirs_) dir->RegisterMemory(memory);
  }
  void UnregisterMemory(std::span<std::byte> memory) override {
    for (const auto& dir : dirs_) dir->UnregisterMemory(memory);
  }
  std::vector<std::string> Describe() const override;

 private:
  using JobVersion = std::pair<std::string, VersionId>;
  struct ActiveWriter {
    bool publishing = false;
    bool cancelled = false;
  };

  Status CheckNotRemoved(const ShardKey& key) override;
  Status Begin(const ShardKey& key) override;
  void End(const ShardKey& key, const StoredShard* published) override;
  void Closed(const ShardKey& key) override;

  Status CheckWritable() const;
  Status CheckNotCancelled(const ShardKey& key) const HOLDFAST_REQUIRES(mutex_);
  /// Registers a writer for `key`, or returns why the shard may not be written.
  Status Admit(const ShardKey& key);
  /// Blocks new writers of a version, and waits for writers that are publishing.
  Status BeginRemoval(const JobVersion& version);
  void EndRemoval(const JobVersion& version);
  void ForgetShards(const JobVersion& version);
  Status CheckListed(const ShardKey& key) const;
  /// Returns `status`, or NotFound when the shard was removed while it was read.
  Status Explain(const ShardKey& key, Status status) const;

  const DirectoryList dirs_;
  const DirectoryLock lock_;
  const IoOptions io_;
  ShardAccess access_;
  Clock& clock_;
  const bool read_only_;
  DurableDirectories directories_;
  RecoveryReport report_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<ShardKey, StoredShard> shards_ HOLDFAST_GUARDED_BY(mutex_);
  std::set<ShardKey> untouchable_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<ShardKey, ActiveWriter> writers_ HOLDFAST_GUARDED_BY(mutex_);
  std::set<JobVersion> removing_ HOLDFAST_GUARDED_BY(mutex_);
};

Status DiskVolume::Recover() {
  Recovery recovery(dirs_);
  if (read_only_) recovery.KeepDamaged();
  HOLDFAST_RETURN_IF_ERROR(recovery.Scan());
  if (!read_only_) HOLDFAST_RETURN_IF_ERROR(recovery.CleanUp());
  report_ = recovery.TakeReport();
  Inventory inventory = recovery.TakeInventory();
  MutexLock lock(mutex_);
  shards_ = std::move(inventory.shards);
  untouchable_ = std::move(inventory.untouchable);
  return Status::Ok();
}

Status DiskVolume::CheckWritable() const {
  if (!read_only_) return Status::Ok();
  return FailedPreconditionError("the data directories are open only for reading");
}

Status DiskVolume::Admit(const ShardKey& key) {
  MutexLock lock(mutex_);
  while (removing_.contains({key.job, key.version})) changed_.Wait(mutex_);
  if (shards_.contains(key)) return AlreadyExistsError(ToString(key) + " is already published");
  if (untouchable_.contains(key)) {
    return AlreadyExistsError(ToString(key) +
                              " is on disk in a form this build cannot read; it is not replaced");
  }
  if (!writers_.emplace(key, ActiveWriter{}).second) {
    return FailedPreconditionError(ToString(key) + " is being written by another writer");
  }
  return Status::Ok();
}

Result<std::unique_ptr<ShardWriter>> DiskVolume::CreateShard(const ShardIdentity& identity,
                                                             std::span<const std::byte> image) {
  HOLDFAST_RETURN_IF_ERROR(CheckWritable());
  HOLDFAST_RETURN_IF_ERROR(ValidateJobName(identity.job));
  if (identity.world > kWorldMax || !RankInWorld(identity.rank, identity.world)) {
    return Fail(InvalidArgumentError(
        fmt::format("rank {} is not in a world of {}", identity.rank.value, identity.world)));
  }
  if (image.empty() || reinterpret_cast<uintptr_t>(image.data()) % kBlockBytes != 0) {
    return Fail(InvalidArgumentError(
        fmt::format("the image of {} has {} bytes; it must not be empty, and its address must be a "
                    "multiple of {}",
                    ToString(identity.key()), image.size(), kBlockBytes)));
  }
  HOLDFAST_RETURN_IF_ERROR(Admit(identity.key()));
  uint64_t unit_bytes = std::max(RoundDownTo(io_.operation_bytes, kBlockBytes), kBlockBytes);
  WriterContext context{dirs_, directories_, *this, clock_, access_, unit_bytes};
  auto writer = std::make_unique<VolumeShardWriter>(context, identity, image);
  Status started = writer->Start();
  if (!started.ok()) {
    HOLDFAST_RETURN_IF_ERROR(CheckNotRemoved(identity.key()));
    return Fail(started);
  }
  return writer;
}

Status DiskVolume::CheckNotCancelled(const ShardKey& key) const {
  if (!writers_.at(key).cancelled) return Status::Ok();
  return AbortedError(ToString(key) + ": the version was removed while the shard was written");
}

Status DiskVolume::CheckNotRemoved(const ShardKey& key) {
  MutexLock lock(mutex_);
  return CheckNotCancelled(key);
}

Status DiskVolume::Begin(const ShardKey& key) {
  MutexLock lock(mutex_);
  HOLDFAST_RETURN_IF_ERROR(CheckNotCancelled(key));
  writers_.at(key).publishing = true;
  return Status::Ok();
}

void DiskVolume::End(const ShardKey& key, const StoredShard* published) {
  MutexLock lock(mutex_);
  writers_.at(key).publishing = false;
  if (published != nullptr) shards_[key] = *published;
  changed_.NotifyAll();
}

void DiskVolume::Closed(const ShardKey& key) {
  MutexLock lock(mutex_);
  writers_.erase(key);
}

std::vector<StoredShard> DiskVolume::List() const {
  MutexLock lock(mutex_);
  std::vector<StoredShard> all;
  for (const auto& [key, stored] : shards_) all.push_back(stored);
  return all;
}

Status DiskVolume::CheckListed(const ShardKey& key) const {
  MutexLock lock(mutex_);
  if (shards_.contains(key)) return Status::Ok();
  return NotFoundError(ToString(key) + " is not on this node's disks");
}

Status DiskVolume::Explain(const ShardKey& key, Status status) const {
  if (status.ok() || CheckListed(key).ok()) return status;
  return NotFoundError(ToString(key) + " was removed while it was read");
}

Result<ShardSeal> DiskVolume::ReadSeal(const ShardKey& key) const {
  HOLDFAST_RETURN_IF_ERROR(CheckListed(key));
  auto seal = LoadSeal(dirs_, key);
  if (!seal) return Fail(Explain(key, seal.error()));
  return seal;
}

Result<ShardSeal> DiskVolume::ReadShard(const ShardKey& key, std::span<std::byte> into,
                                        const std::function<void(uint64_t)>& progress) const {
  HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, ReadSeal(key));
  HOLDFAST_RETURN_IF_ERROR(Explain(key, ReadImage(dirs_, seal, io_, into, progress)));
  return seal;
}

Status DiskVolume::StreamShard(
    const ShardSeal& seal,
    const std::function<Status(uint64_t, std::span<const std::byte>)>& sink) const {
  return Explain(seal.identity.key(), StreamImage(dirs_, seal, io_, sink));
}

Result<std::unique_ptr<ShardChunks>> DiskVolume::OpenChunks(const ShardKey& key) const {
  HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, ReadSeal(key));
  auto chunks = OpenShardChunks(dirs_, std::move(seal));
  if (!chunks) return Fail(Explain(key, chunks.error()));
  return chunks;
}

Status DiskVolume::VerifyShard(const ShardKey& key, bool deep) const {
  HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, ReadSeal(key));
  return Explain(key, deep ? CheckDeep(dirs_, seal, io_) : CheckStructure(dirs_, seal));
}

Status DiskVolume::RewriteChunk(const ShardKey& key, uint64_t index,
                                std::span<const std::byte> bytes) {
  HOLDFAST_RETURN_IF_ERROR(CheckWritable());
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, ReadSeal(key));
  return Explain(key, holdfast::RewriteChunk(dirs_, seal, index, bytes));
}

Status DiskVolume::BeginRemoval(const JobVersion& version) {
  MutexLock lock(mutex_);
  while (removing_.contains(version)) changed_.Wait(mutex_);
  for (const ShardKey& key : untouchable_) {
    if (key.job == version.first && key.version == version.second) {
      return UnsupportedError(ToString(key) +
                              " is on disk in a form this build cannot read; its version is not "
                              "removed");
    }
  }
  removing_.insert(version);
  auto busy = [&]() HOLDFAST_REQUIRES(mutex_) {
    bool publishing = false;
    for (auto& [key, writer] : writers_) {
      if (key.job != version.first || key.version != version.second) continue;
      writer.cancelled = true;
      publishing = publishing || writer.publishing;
    }
    return publishing;
  };
  while (busy()) changed_.Wait(mutex_);
  return Status::Ok();
}

void DiskVolume::EndRemoval(const JobVersion& version) {
  MutexLock lock(mutex_);
  removing_.erase(version);
  changed_.NotifyAll();
}

void DiskVolume::ForgetShards(const JobVersion& version) {
  MutexLock lock(mutex_);
  std::erase_if(shards_, [&](const auto& entry) {
    return entry.first.job == version.first && entry.first.version == version.second;
  });
}

Status DiskVolume::RemoveVersion(const std::string& job, VersionId version) {
  HOLDFAST_RETURN_IF_ERROR(CheckWritable());
  HOLDFAST_RETURN_IF_ERROR(ValidateJobName(job));
  JobVersion which{job, version};
  HOLDFAST_RETURN_IF_ERROR(BeginRemoval(which));
  std::vector<Tombstone> tombstones;
  Status removed = MakeTombstones(dirs_, job, version, &tombstones);
  if (!tombstones.empty()) {
    directories_.Forget(VersionPath(job, version));
    ForgetShards(which);
  }
  EndRemoval(which);
  HOLDFAST_RETURN_IF_ERROR(removed);
  for (const Tombstone& tombstone : tombstones) {
    HOLDFAST_RETURN_IF_ERROR(DeleteTombstone(*dirs_[tombstone.index], tombstone.path));
  }
  HOLDFAST_CRASH_POINT("volume.remove_done");
  Log(LogLevel::kDebug, "VersionRemoved", {Kv("job", job), Kv("version", ToString(version))});
  return Status::Ok();
}

Status DiskVolume::Quarantine(const ShardKey& key, const std::string& why) {
  HOLDFAST_RETURN_IF_ERROR(CheckWritable());
  {
    MutexLock lock(mutex_);
    if (shards_.erase(key) == 0) {
      return NotFoundError(ToString(key) + " is not on this node's disks");
    }
  }
  Status moved = QuarantineShard(dirs_, key);
  Log(LogLevel::kWarn, moved.ok() ? "Quarantined" : "QuarantineFailed",
      {Kv("shard", ToString(key)), Kv("why", why), Kv("status", moved.ToString())});
  return moved;
}

uint64_t DiskVolume::QuarantinedFiles() const {
  uint64_t files = 0;
  for (const auto& dir : dirs_) {
    auto entries = dir->List(std::string(kQuarantineName));
    if (entries) files += entries->size();
  }
  return files;
}

uint64_t DiskVolume::FreeBytes() const {
  // Shards are spread evenly, so the fullest directory limits the total.
  uint64_t least = UINT64_MAX;
  for (const auto& dir : dirs_) least = std::min(least, dir->FreeBytes().value_or(0));
  return least > UINT64_MAX / dirs_.size() ? UINT64_MAX : least * dirs_.size();
}

std::vector<std::string> DiskVolume::Describe() const {
  std::vector<std::string> all;
  for (const auto& dir : dirs_) all.push_back(dir->Describe());
  return all;
}

}  // namespace

Result<std::vector<StoredShard>> Volume::ListJob(const std::string& job) const {
  std::vector<StoredShard> shards = List();
  std::erase_if(shards, [&job](const StoredShard& shard) { return shard.identity.job != job; });
  return shards;
}

Result<std::unique_ptr<Volume>> Volume::Open(std::vector<std::unique_ptr<Directory>> dirs,
                                             const VolumeOptions& options, Clock& clock) {
  if (dirs.empty() || dirs.size() > kPartsMax) {
    return Fail(InvalidArgumentError(fmt::format(
        "a volume has 1 to {} data directories, not {}: check data_dirs", kPartsMax, dirs.size())));
  }
  HOLDFAST_RETURN_IF_ERROR(ValidateName("cluster", options.cluster));
  HOLDFAST_ASSIGN_OR_RETURN(DirectoryLock lock, DirectoryLock::Acquire(dirs));
  HOLDFAST_RETURN_IF_ERROR(ClaimDirectories(dirs, options.cluster));
  auto volume = std::make_unique<DiskVolume>(std::move(dirs), std::move(lock), options.io,
                                             options.access, clock, /*read_only=*/false);
  HOLDFAST_RETURN_IF_ERROR(volume->Recover());
  const RecoveryReport& report = volume->recovery();
  Log(LogLevel::kInfo, "VolumeOpened",
      {Kv("node", options.node), Kv("shards", report.shards.size()),
       Kv("quarantined", report.quarantined.size()), Kv("dropped", report.dropped.size())});
  return volume;
}

Result<std::unique_ptr<Volume>> OpenVolumeReadOnly(const std::vector<std::string>& data_dirs,
                                                   const IoOptions& io, Clock& clock) {
  if (data_dirs.empty()) return Fail(InvalidArgumentError("no data directory is given"));
  DirectoryList dirs;
  for (const std::string& path : data_dirs) {
    HOLDFAST_ASSIGN_OR_RETURN(auto dir, OpenDirectoryReadOnly(path, io));
    dirs.push_back(std::move(dir));
  }
  HOLDFAST_RETURN_IF_ERROR(OrderDirectories(&dirs));
  auto volume = std::make_unique<DiskVolume>(std::move(dirs), DirectoryLock(), io, JobAccess(),
                                             clock, /*read_only=*/true);
  HOLDFAST_RETURN_IF_ERROR(volume->Recover());
  return volume;
}

}  // namespace holdfast
