#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/base/clock.h"
#include "storage/format/parts.h"
#include "storage/format/seal.h"
#include "storage/io/block_file.h"
#include "storage/volume/aligned_buffer.h"
#include "storage/volume/durable_directories.h"
#include "storage/volume/volume.h"

namespace holdfast {

/// What a writer asks of the volume it belongs to. Thread-safe.
class PublishGate {
 public:
  virtual ~PublishGate() = default;
  /// Aborted when the version was removed since the writer was made.
  virtual Status CheckWanted(const ShardKey& key) = 0;
  /// Before the first final name appears; as CheckWanted, and from here to End the version is not
  /// removed.
  virtual Status Begin(const ShardKey& key) = 0;
  /// `published` is null when it failed.
  virtual void End(const ShardKey& key, const StoredShard* published) = 0;
  /// The writer is gone.
  virtual void Closed(const ShardKey& key) = 0;
};

/// What all writers of a volume share; outlives them.
struct WriterContext {
  const std::vector<std::unique_ptr<Directory>>& dirs;
  DurableDirectories& directories;
  PublishGate& gate;
  Clock& clock;
  uint64_t unit_bytes;  // streaming writes are whole multiples of this, but for the last
};

/// One file of a shard being written: header and first bytes of the part from a bounce buffer, the
/// rest straight from the image, the padded tail cut off at the end. Thread-compatible.
class PartWriter {
 public:
  PartWriter(Directory& dir, std::string version_path, std::string final_name);
  ~PartWriter();  // Removes the file unless Keep() was called.

  /// Makes the temporary file and reserves its space. An empty header: the part is the image.
  Status Create(PartPlan plan, std::span<const std::byte> image);
  /// Queues what [0, ready_bytes) of the image allows, in whole multiples of `unit_bytes` and at
  /// most `bytes_max`. True when there was something to queue.
  Result<bool> QueueReady(uint64_t ready_bytes, uint64_t unit_bytes, uint64_t bytes_max);
  /// The image is complete: queues the rest, waits, sets the length, syncs, closes.
  Status Finish();
  /// Waits for what is queued: the image run that is written and not read again.
  Result<std::pair<uint64_t, uint64_t>> Settle();
  /// Gives the file its final name; not durable before the directory is synced.
  Status Rename();
  /// The file stays.
  void Keep() { kept_ = true; }

  SealPart seal_part() const;

 private:
  /// Congruent to `image_offset` modulo kBlockBytes: PlanParts sees to it.
  uint64_t FileOffset(uint64_t image_offset) const {
    return image_offset - plan_.image_begin + plan_.header.size();
  }
  /// The bounce buffer, once the image bytes in it are final.
  Status QueueHead(uint64_t ready_bytes);

  Directory& dir_;
  std::string version_path_;
  std::string final_name_;
  std::string temporary_name_;
  std::unique_ptr<BlockFile> file_;
  std::span<const std::byte> image_;
  PartPlan plan_;
  AlignedBuffer head_;        // header, and the image bytes that share its last block
  bool head_queued_ = false;  // or there is none
  uint64_t next_image_ = 0;   // first image byte not queued; its file offset is a whole block
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

  /// What can be done before the image's header is known: with one data directory the file is made
  /// and its space reserved.
  Status Start();
  Status Advance(uint64_t ready_bytes) override;
  Result<std::vector<std::pair<uint64_t, uint64_t>>> Settle() override;
  Status Publish(ShardSeal seal) override;

 private:
  /// Makes all files and reserves their space; starts syncing the directories they are in.
  Status CreateParts(std::vector<PartPlan> plans);
  /// Creates the parts once the image's header is complete; false when it is not yet.
  Result<bool> PlanFromHeader();
  /// Queues what is ready, taking turns between the parts.
  Status AdvanceParts();
  /// The seal is of this shard and of this length.
  Status CheckSeal(const ShardSeal& seal) const;
  /// The publishing order, from the last bytes to the last sync; docs/formats/volume.md.
  Status CheckHeader(const ShardSeal& seal) const;
  Status PublishChecked(ShardSeal& seal);
  /// Waits for the syncing that CreateParts started, or does it now.
  Status SyncDirectories();
  Status FinishPartsAndSeal(const ShardSeal& seal, const std::string& seal_temporary);
  /// Final names, data before seal, each durable before the next.
  Status RenameAll(const std::string& seal_temporary);
  /// Takes back whatever has a name. Best effort: what stays is dropped at the next start.
  void Abandon();
  /// Runs `work(i)` for i in [0, count), on threads of their own when the shard is big enough for
  /// that to pay; the first error by index.
  template <typename Work>
  Status ForAll(size_t count, const Work& work);

  WriterContext context_;
  ShardIdentity identity_;
  std::string version_path_;
  std::span<const std::byte> image_;
  uint64_t ready_bytes_ = 0;
  std::vector<std::unique_ptr<PartWriter>> parts_;
  std::string image_header_;           // with several parts
  std::vector<uint32_t> header_crcs_;  // of the chunks that it was copied from
  std::future<Status> directories_synced_;
  Status failure_;
  bool done_ = false;
  bool seal_renamed_ = false;  // the shard may exist although Publish() failed
  std::string seal_temporary_path_;
};

}  // namespace holdfast
