#include "storage/volume/quota_volume.h"

#include <fmt/format.h>

#include <list>
#include <map>
#include <set>
#include <utility>

#include "base/config.h"
#include "base/mutex.h"

namespace holdfast {
namespace {

class QuotaVolume final : public Volume {
 public:
  QuotaVolume(std::unique_ptr<Volume> volume, DiskQuotas quotas, Clock& clock)
      : volume_(std::move(volume)), quotas_(std::move(quotas)), clock_(clock) {}

  Result<std::unique_ptr<ShardWriter>> CreateShard(const ShardIdentity& identity,
                                                   std::span<const std::byte> image) override;
  Status RemoveVersion(const std::string& job, VersionId version) override {
    Status removed = volume_->RemoveVersion(job, version);
    Freed();
    return removed;
  }
  Status Quarantine(const ShardKey& key, const std::string& why) override {
    Status moved = volume_->Quarantine(key, why);
    Freed();
    return moved;
  }

  const RecoveryReport& recovery() const override { return volume_->recovery(); }
  std::vector<StoredShard> List() const override { return volume_->List(); }
  Result<std::vector<StoredShard>> ListJob(const std::string& job) const override {
    return volume_->ListJob(job);
  }
  Result<ShardSeal> ReadSeal(const ShardKey& key) const override { return volume_->ReadSeal(key); }
  Result<ShardSeal> ReadShard(const ShardKey& key, std::span<std::byte> into,
                              const std::function<void(uint64_t)>& progress) const override {
    return volume_->ReadShard(key, into, progress);
  }
  Status StreamShard(
      const ShardSeal& seal,
      const std::function<Status(uint64_t, std::span<const std::byte>)>& sink) const override {
    return volume_->StreamShard(seal, sink);
  }
  Result<std::unique_ptr<ShardChunks>> OpenChunks(const ShardKey& key) const override {
    return volume_->OpenChunks(key);
  }
  Status VerifyShard(const ShardKey& key, bool deep) const override {
    return volume_->VerifyShard(key, deep);
  }
  Status RewriteChunk(const ShardKey& key, uint64_t index,
                      std::span<const std::byte> bytes) override {
    return volume_->RewriteChunk(key, index, bytes);
  }
  void SetLife(LifeId life) override { volume_->SetLife(life); }
  uint64_t QuarantinedFiles() const override { return volume_->QuarantinedFiles(); }
  uint64_t FreeBytes() const override { return volume_->FreeBytes(); }
  Result<SeenLife> ReadLife() const override { return volume_->ReadLife(); }
  Status WriteLife(const SeenLife& seen) override { return volume_->WriteLife(seen); }
  Result<std::vector<VersionCommit>> ReadCommits() const override { return volume_->ReadCommits(); }
  Status WriteCommits(const std::vector<VersionCommit>& commits) override {
    return volume_->WriteCommits(commits);
  }
  void RegisterMemory(std::span<std::byte> memory) override { volume_->RegisterMemory(memory); }
  void UnregisterMemory(std::span<std::byte> memory) override { volume_->UnregisterMemory(memory); }
  std::vector<std::string> Describe() const override { return volume_->Describe(); }

 private:
  struct Pending {
    ShardKey key;
    uint64_t bytes = 0;
  };
  using Reservation = std::list<Pending>::iterator;

  /// Counts the bytes of a shard until its writer is destroyed.
  class CountedWriter final : public ShardWriter {
   public:
    CountedWriter(QuotaVolume& volume, Reservation reservation, std::unique_ptr<ShardWriter> writer)
        : volume_(volume), reservation_(reservation), writer_(std::move(writer)) {}
    ~CountedWriter() override {
      writer_.reset();
      volume_.Release(reservation_);
    }
    Status Advance(uint64_t ready_bytes) override { return writer_->Advance(ready_bytes); }
    Result<std::vector<std::pair<uint64_t, uint64_t>>> Settle() override {
      return writer_->Settle();
    }
    Status Publish(ShardSeal seal) override { return writer_->Publish(std::move(seal)); }

   private:
    QuotaVolume& volume_;
    const Reservation reservation_;
    std::unique_ptr<ShardWriter> writer_;
  };

  Result<Reservation> Reserve(const ShardKey& key, uint64_t bytes);
  void Release(Reservation reservation) {
    MutexLock lock(mutex_);
    pending_.erase(reservation);
    freed_.NotifyAll();
  }
  /// Something was removed: jobs that were refused may wait again.
  void Freed() {
    MutexLock lock(mutex_);
    refused_jobs_.clear();
    freed_.NotifyAll();
  }
  /// Calls `count` with each shard that is published or being written.
  void ForEach(const std::function<void(const ShardKey&, uint64_t)>& count) const
      HOLDFAST_REQUIRES(mutex_);
  /// OutOfSpace: the shard has no room.
  Status Check(const ShardKey& key, uint64_t bytes) const HOLDFAST_REQUIRES(mutex_);
  std::optional<uid_t> OwnerOf(const std::string& job) const {
    return quotas_.owner ? quotas_.owner(job) : std::nullopt;
  }

  const std::unique_ptr<Volume> volume_;
  const DiskQuotas quotas_;
  Clock& clock_;
  mutable Mutex mutex_;  // taken before the volume's
  CondVar freed_;
  std::list<Pending> pending_ HOLDFAST_GUARDED_BY(mutex_);
  std::set<std::string> refused_jobs_ HOLDFAST_GUARDED_BY(mutex_);
};

Result<std::unique_ptr<ShardWriter>> QuotaVolume::CreateShard(const ShardIdentity& identity,
                                                              std::span<const std::byte> image) {
  HOLDFAST_ASSIGN_OR_RETURN(const Reservation reservation, Reserve(identity.key(), image.size()));
  auto writer = volume_->CreateShard(identity, image);
  if (!writer) {
    Release(reservation);
    return Fail(writer.error());
  }
  return std::make_unique<CountedWriter>(*this, reservation, *std::move(writer));
}

Result<QuotaVolume::Reservation> QuotaVolume::Reserve(const ShardKey& key, uint64_t bytes) {
  const auto deadline = clock_.Now() + quotas_.patience;
  MutexLock lock(mutex_);
  Status status = Check(key, bytes);
  while (!status.ok() && !refused_jobs_.contains(key.job)) {
    if (!freed_.WaitUntil(mutex_, deadline)) refused_jobs_.insert(key.job);
    status = Check(key, bytes);
  }
  HOLDFAST_RETURN_IF_ERROR(status);
  refused_jobs_.erase(key.job);
  return pending_.insert(pending_.end(), {key, bytes});
}

void QuotaVolume::ForEach(const std::function<void(const ShardKey&, uint64_t)>& count) const {
  std::set<ShardKey> published;
  for (const StoredShard& shard : volume_->List()) {
    count(shard.identity.key(), shard.image_bytes);
    if (!pending_.empty()) published.insert(shard.identity.key());
  }
  for (const Pending& pending : pending_) {
    if (!published.contains(pending.key)) count(pending.key, pending.bytes);
  }
}

Status QuotaVolume::Check(const ShardKey& key, uint64_t bytes) const {
  const std::optional<uid_t> owner = OwnerOf(key.job);
  std::map<std::string, uint64_t> by_job;
  bool published = false;
  ForEach([&](const ShardKey& other, uint64_t size) {
    by_job[other.job] += size;
    published = published || other == key;
  });
  // The volume refuses it, with the reason.
  if (published) return Status::Ok();
  uint64_t of_user = 0;
  for (const auto& [job, size] : by_job) {
    if (owner && OwnerOf(job) == owner) of_user += size;
  }
  const auto exceeds = [bytes](uint64_t used, uint64_t quota) {
    return quota != 0 && (used > quota || bytes > quota - used);
  };
  const std::string needs = fmt::format("{} needs {}", ToString(key), FormatBytes(bytes));
  if (exceeds(by_job[key.job], quotas_.job_bytes)) {
    return OutOfSpaceError(fmt::format(
        "{}: {}, and the job's shards have {} of {} on this node's disks: keep fewer "
        "versions, or raise limits.disk_bytes_per_job",
        DiskQuotaOf(key.job), needs, FormatBytes(by_job[key.job]), FormatBytes(quotas_.job_bytes)));
  }
  if (owner && *owner != 0 && exceeds(of_user, quotas_.user_bytes)) {
    return OutOfSpaceError(fmt::format(
        "{} of uid {}: {}, and the shards of the user's jobs have {} of {} on this node's disks: "
        "keep fewer versions, forget a job, or raise limits.disk_bytes_per_user",
        kDiskQuota, *owner, needs, FormatBytes(of_user), FormatBytes(quotas_.user_bytes)));
  }
  return Status::Ok();
}

}  // namespace

std::unique_ptr<Volume> WithQuotas(std::unique_ptr<Volume> volume, DiskQuotas quotas,
                                   Clock& clock) {
  if (quotas.job_bytes == 0 && quotas.user_bytes == 0) return volume;
  return std::make_unique<QuotaVolume>(std::move(volume), std::move(quotas), clock);
}

}  // namespace holdfast
