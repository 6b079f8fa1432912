#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "storage/io/block_file.h"
#include "storage/volume/shard_access.h"
#include "storage/volume/tier_store.h"

namespace holdfast {

/// Opens the directories of a shared tier. Thread-safe.
class SharedRoot {
 public:
  virtual ~SharedRoot() = default;
  /// Opens the directory `name` of the root, and makes it if `make`. Unavailable when the root does
  /// not exist, NotFound when the directory does not.
  virtual Result<std::unique_ptr<Directory>> Open(const std::string& name, bool make) = 0;
};

/// Returns the root `path` of a real file system. Never makes `path` itself: without a mounted file
/// system it may be missing, and the shards would go to another device.
std::unique_ptr<SharedRoot> FileSystemRoot(const std::string& path, const IoOptions& io);

struct RemoteOptions {
  std::string cluster;
  IoOptions io;           // its queue depth bounds the requests in flight of one shard
  JobAccess access = {};  // of the files of a job; none: only the user of this process
};

/// The tier remote in a directory that all nodes mount: a parallel or network file system. Each
/// life of the coordinator's store has its own directory "<cluster>-<life>", with the layout of a
/// volume with one data directory (docs/formats/remote.md). Many nodes write there at once, each
/// the shards of its ranks, and any node reads and removes all of them.
///
/// The directory is opened at the first call and again after each failed call, since handles of a
/// network file system can become stale. A directory that was there and is gone is not made again:
/// its file system may not be mounted. Errors name the tier. Thread-safe; calls block as long as
/// the file system does. No call holds the mutex during I/O.
class RemoteDirectory final : public TierStore {
 public:
  /// `clock` outlives the object.
  RemoteDirectory(std::unique_ptr<SharedRoot> root, RemoteOptions options, Clock& clock);
  ~RemoteDirectory() override;

  Result<std::unique_ptr<ShardWriter>> CreateShard(const ShardIdentity& identity,
                                                   std::span<const std::byte> image) override;
  Result<std::vector<StoredShard>> ListJob(const std::string& job) const override;
  Result<ShardSeal> ReadSeal(const ShardKey& key) const override;
  Result<std::unique_ptr<ShardChunks>> OpenChunks(const ShardKey& key) const override;
  Status VerifyShard(const ShardKey& key, bool deep) const override;
  Status RemoveVersion(const std::string& job, VersionId version) override;
  Status Quarantine(const ShardKey& key, const std::string& why) override;
  void SetLife(LifeId life) override;

 private:
  struct Opened;
  // A shared_ptr, since writers and readers use an opened directory after it was opened again.
  using OpenedPtr = std::shared_ptr<Opened>;

  /// A shard's seal, and the directory that it was read from.
  struct Found {
    OpenedPtr opened;
    ShardSeal seal;
  };

  /// Returns the directory, and makes it if `make`. Unavailable when it is not there.
  Result<OpenedPtr> Open(bool make) const;
  /// NotFound only when the directory is there and has no such shard.
  Result<Found> Find(const ShardKey& key) const;
  /// Returns `status`, and opens the directory again before the next call if it is an error of the
  /// file system.
  Status Check(const OpenedPtr& used, Status status) const;

  const std::unique_ptr<SharedRoot> root_;
  const RemoteOptions options_;
  ShardAccess access_;
  Clock& clock_;
  mutable Mutex mutex_;
  LifeId life_ HOLDFAST_GUARDED_BY(mutex_);
  mutable OpenedPtr opened_ HOLDFAST_GUARDED_BY(mutex_);
  mutable bool was_there_ HOLDFAST_GUARDED_BY(mutex_) = false;  // in this life
};

}  // namespace holdfast
