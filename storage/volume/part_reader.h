#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "storage/format/seal.h"
#include "storage/io/block_file.h"
#include "storage/volume/aligned_buffer.h"

namespace holdfast {

/// The memory that receives read bytes: byte i of the image goes to base + i % ring_bytes. With
/// ring_bytes at least the image's length, the memory contains the complete image; otherwise it is
/// a window that moves over the image. ring_bytes is a multiple of kChunkBytes, so no chunk wraps.
struct ReadTarget {
  std::byte* base = nullptr;
  uint64_t ring_bytes = 0;

  std::byte* At(uint64_t image_offset) const { return base + image_offset % ring_bytes; }
};

/// How far reading runs ahead of verification, and the size of its pieces.
struct ReadPace {
  uint64_t unit_bytes = 0;
  uint64_t ahead_bytes = 0;
};
ReadPace PaceOf(const IoOptions& io);

/// Reads one file of a shard. Thread-compatible.
class PartReader {
 public:
  /// Opens the file. DataLoss when it is missing or its length differs from `part`. `image_bytes`
  /// is the length of the complete image.
  static Result<std::unique_ptr<PartReader>> Open(Directory& dir, const std::string& path,
                                                  const SealPart& part, uint64_t image_bytes);
  /// For Open(), after its checks. Takes ownership of `file`; `path` is for messages.
  PartReader(std::string path, const SealPart& part, uint64_t image_bytes,
             std::unique_ptr<BlockFile> file);

  /// Reads all bytes into `target`. Calls `on_read(end)` in ascending order for each end of a chunk
  /// and for the end of the part, while later bytes are still being read. At each call the part's
  /// bytes before `end` are in place. In a ring they may be overwritten after the call for the end
  /// of their chunk has returned. An error from `on_read` ends the reading. No operation is in
  /// flight on return.
  Status Read(const ReadTarget& target, const ReadPace& pace,
              const std::function<Status(uint64_t end)>& on_read);
  /// Reads and verifies only the part's own header.
  Status CheckHeader();
  /// Reads the image bytes from `image_begin` on, which must be in the part. For random access.
  /// Blocks.
  Status ReadAt(uint64_t image_begin, std::span<std::byte> into);

  const std::string& path() const { return path_; }

 private:
  uint64_t FileOffset(uint64_t image_offset) const {
    return image_offset - part_.image_begin + part_.data_offset;
  }
  /// Read() without the final Drain(), which must follow.
  Status ReadQueued(const ReadTarget& target, const ReadPace& pace,
                    const std::function<Status(uint64_t end)>& on_read);
  /// Queues the part's header, with the image bytes that share its last block.
  Status QueueHead();
  /// Queues the image bytes from next_ up to at most `limit`, in pieces that end at multiples of a
  /// unit.
  Status QueueUntil(uint64_t limit, uint64_t unit_bytes, const ReadTarget& target);
  Status CheckHeaderCrc() const;

  std::string path_;
  SealPart part_;
  uint64_t image_bytes_;
  uint64_t head_end_ = 0;  // first image byte after the blocks that contain the header
  uint64_t next_ = 0;      // first image byte that is not queued
  AlignedBuffer head_;     // buffers outlive file_: its operations may use them
  AlignedBuffer tail_;
  AlignedBuffer blocks_;  // of ReadAt
  std::unique_ptr<BlockFile> file_;
};

}  // namespace holdfast
