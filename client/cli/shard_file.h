#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "client/cli/agent_client.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress.h"
#include "storage/base/fd.h"
#include "storage/volume/volume.h"

namespace holdfast::cli {

/// What a restored shard must be.
struct ExpectedShard {
  ShardKey key;
  uint32_t world = 0;
  uint64_t image_bytes = 0;
  uint64_t digest = 0;
};

/// The folder that a version is restored into. Nothing appears under a final name before Publish():
/// a restore that fails or is interrupted leaves the folder as it was.
class RestoreTarget {
 public:
  /// Checks that `dir` can take `bytes`: it does not exist or is empty, and its file system has
  /// room. Creates nothing.
  static Status Check(const std::string& dir, uint64_t bytes);
  /// Makes the folder, parents included, each synced.
  static Result<RestoreTarget> Make(const std::string& dir);

  const std::string& dir() const { return dir_; }
  int fd() const { return fd_.get(); }
  /// Makes the names in it durable.
  Status Sync() const;

 private:
  RestoreTarget(std::string dir, UniqueFd fd) : dir_(std::move(dir)), fd_(std::move(fd)) {}

  std::string dir_;
  UniqueFd fd_;
};

/// "rank-00000-of-00004.safetensors"
std::string RestoredName(Rank rank, uint32_t world);

/// One shard on its way into a folder, under a temporary name that goes when this object does.
/// Thread-compatible; several may be written at once.
class ShardFile : public ShardSink {
 public:
  /// `target` and `progress` outlive it.
  static Result<std::unique_ptr<ShardFile>> Create(const RestoreTarget& target,
                                                   const ExpectedShard& expected,
                                                   Progress& progress);

  /// Refuses a seal that is not the expected shard's; reserves the space.
  Status Begin(const ShardSeal& seal) override;
  Status Chunk(uint64_t offset, std::span<const std::byte> bytes) override;
  /// Reads it from a volume instead, through a mapping of the file: no memory of the image's size.
  Status ReadFrom(const Volume& volume);
  /// Durable under the temporary name.
  Status Finish();
  /// Takes the final name, which must be free. Durable after the target's Sync(); until Keep() it
  /// is still removed with this object.
  Status Publish();
  void Keep() { file_->Keep(); }
  /// Bytes counted as progress so far: to take back when another source is tried.
  uint64_t written_bytes() const { return written_; }

 private:
  ShardFile(const RestoreTarget& target, ExpectedShard expected, Progress& progress)
      : target_(target), expected_(std::move(expected)), progress_(progress) {}

  const RestoreTarget& target_;
  const ExpectedShard expected_;
  Progress& progress_;
  std::string temporary_;
  std::unique_ptr<TemporaryFile> file_;
  UniqueFd fd_;
  uint64_t written_ = 0;
};

}  // namespace holdfast::cli
