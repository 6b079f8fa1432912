#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "storage/format/parts.h"
#include "storage/format/seal.h"
#include "storage/io/block_file.h"
#include "storage/volume/aligned_buffer.h"
#include "storage/volume/durable_directories.h"
#include "storage/volume/shard_access.h"
#include "storage/volume/volume.h"

namespace holdfast {

/// The volume's interface to its writers. It prevents the removal of a version while a shard of it
/// is being published. Thread-safe.
class PublishGate {
 public:
  virtual ~PublishGate() = default;
  /// Returns Aborted when the version was removed since the writer was made.
  virtual Status CheckNotRemoved(const ShardKey& key) = 0;
  /// Called before the first rename to a final name. Checks as CheckNotRemoved does. Until End()
  /// the version is not removed.
  virtual Status Begin(const ShardKey& key) = 0;
  /// Ends publishing. `published` is null when publishing failed.
  virtual void End(const ShardKey& key, const StoredShard* published) = 0;
  /// Called when the writer is destroyed.
  virtual void Closed(const ShardKey& key) = 0;
};

/// The state that all writers of a volume share; must outlive them.
struct WriterContext {
  const std::vector<std::unique_ptr<Directory>>& dirs;
  DurableDirectories& directories;
  PublishGate& gate;
  Clock& clock;
  ShardAccess& access;
  uint64_t unit_bytes;  // streaming writes are multiples of this, except for the last
};

/// Writes one file of a shard. The part's header and first bytes come from a bounce buffer, the
/// rest directly from the image. The padded tail is truncated at the end. Thread-compatible.
class PartWriter {
 public:
  PartWriter(Directory& dir, std::string version_path, std::string final_name);
  ~PartWriter();  // Removes the file unless Keep() was called.

  /// Creates the temporary file. An empty header means that the part is the complete image.
  Status Create(PartPlan plan, std::span<const std::byte> image);
  /// Reserves the space of the file.
  Status Reserve();
  /// Returns the path of the temporary file.
  std::string temporary_path() const { return version_path_ + "/" + temporary_name_; }
  /// Queues bytes in [0, ready_bytes) of the image, in multiples of `unit_bytes` and at most
  /// `bytes_max`. Returns true when it queued any.
  Result<bool> QueueReady(uint64_t ready_bytes, uint64_t unit_bytes, uint64_t bytes_max);
  /// Call it when the image is complete. Queues the rest, waits, sets the length, syncs and closes.
  Status Finish();
  /// Waits for the queued writes. Returns the range of the image that is written and will not be
  /// read again.
  Result<std::pair<uint64_t, uint64_t>> Settle();
  /// Gives the file its final name, which is durable once the directory is synced.
  Status Rename();
  /// Prevents the destructor from removing the file.
  void Keep() { kept_ = true; }

  SealPart seal_part() const;

 private:
  /// Returns the file offset of an image offset. PlanParts guarantees that the two are congruent
  /// modulo kBlockBytes.
  uint64_t FileOffset(uint64_t image_offset) const {
    return image_offset - plan_.image_begin + plan_.header.size();
  }
  /// Queues the bounce buffer once the image bytes in it are final.
  Status QueueHead(uint64_t ready_bytes);

  Directory& dir_;
  std::string version_path_;
  std::string final_name_;
  std::string temporary_name_;
  std::unique_ptr<BlockFile> file_;
  std::span<const std::byte> image_;
  PartPlan plan_;
  AlignedBuffer head_;        // the header, and the image bytes that share its last block
  bool head_queued_ = false;  // true if there is no header
  uint64_t next_image_ = 0;   // first image byte not queued; its file offset is block-aligned
  uint32_t header_crc_ = 0;
  bool exists_ = false;
  bool renamed_ = false;
  bool kept_ = false;
};

/// The volume's ShardWriter.
class VolumeShardWriter : public ShardWriter {
 public:
  VolumeShardWriter(const WriterContext& context, ShardIdentity identity,
                    std::span<const std::byte> image);
  ~VolumeShardWriter() override;

  /// Makes the preparations that do not depend on the image's header. With one data directory, it
  /// creates the file and reserves its space.
  Status Start();
  Status Advance(uint64_t ready_bytes) override;
  Result<std::vector<std::pair<uint64_t, uint64_t>>> Settle() override;
  Status Publish(ShardSeal seal) override;

 private:
  /// Creates all files, reserves their space and starts to sync their directories.
  Status CreateParts(std::vector<PartPlan> plans);
  /// Creates the parts once the image's header is complete. Returns false until then.
  Result<bool> PlanFromHeader();
  /// Queues the bytes that are ready, alternating between the parts.
  Status AdvanceParts();
  /// Checks that the seal describes this shard and this length.
  Status CheckSeal(const ShardSeal& seal) const;
  Status CheckHeader(const ShardSeal& seal) const;
  /// Publishes in the order of docs/formats/volume.md, from the last bytes to the last sync.
  Status PublishChecked(ShardSeal& seal);
  /// Waits for the syncs that CreateParts started, or syncs the directories now.
  Status SyncDirectories();
  Status FinishPartsAndSeal(const ShardSeal& seal, const std::string& seal_temporary);
  /// Renames the data files and then the seal to their final names. Each step is durable before the
  /// next.
  Status RenameAll(const std::string& seal_temporary);
  /// Removes all files of the shard. Best effort: the next start drops any that remain.
  void Abandon();
  /// Runs `work(i)` for i in [0, count), on separate threads when the shard is large enough.
  /// Returns the first error by index.
  template <typename Work>
  Status ForAll(size_t count, const Work& work);

  WriterContext context_;
  ShardIdentity identity_;
  const FileAccess access_;
  FileAccess seal_access_;  // that of the first part
  std::string version_path_;
  std::span<const std::byte> image_;
  uint64_t ready_bytes_ = 0;
  std::vector<std::unique_ptr<PartWriter>> parts_;
  std::string image_header_;           // only with several parts
  std::vector<uint32_t> header_crcs_;  // of the chunks that image_header_ was copied from
  std::future<Status> directories_synced_;
  Status failure_;
  bool done_ = false;
  bool seal_renamed_ = false;  // the shard may be valid although Publish() failed
  std::string seal_temporary_path_;
};

}  // namespace holdfast
