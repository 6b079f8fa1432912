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

/// Where read bytes land: byte i of the image at base + i % ring_bytes. With ring_bytes no less
/// than the image that is the image itself; otherwise a window that moves over it. ring_bytes is a
/// multiple of kChunkBytes, so a chunk never wraps.
struct ReadTarget {
  std::byte* base = nullptr;
  uint64_t ring_bytes = 0;

  std::byte* At(uint64_t image_offset) const { return base + image_offset % ring_bytes; }
};

/// How far reading runs ahead of checking, and in what pieces.
struct ReadPace {
  uint64_t unit_bytes = 0;
  uint64_t ahead_bytes = 0;
};
ReadPace PaceOf(const IoOptions& io);

/// Reads one file of a shard. Thread-compatible.
class PartReader {
 public:
  /// Checks that the file is there and as long as `part` says: DataLoss otherwise. `image_bytes` is
  /// the length of the whole image.
  static Result<std::unique_ptr<PartReader>> Open(Directory& dir, const std::string& path,
                                                  const SealPart& part, uint64_t image_bytes);
  /// What Open() calls once it has checked: takes over `file`; `path` is for messages.
  PartReader(std::string path, const SealPart& part, uint64_t image_bytes,
             std::unique_ptr<BlockFile> file);

  /// Reads everything into `target`. `on_read(end)` is called in ascending order for each end of a
  /// chunk and for the end of the part, while what follows is still being read: the part's bytes
  /// before `end` are in place, and may be overwritten (in a ring) once it has returned for the
  /// chunk they are in. An error from it ends the reading. Nothing is under way on return.
  Status Read(const ReadTarget& target, const ReadPace& pace,
              const std::function<Status(uint64_t end)>& on_read);
  /// Reads and checks the part's own header alone.
  Status CheckHeader();
  /// The image bytes from `image_begin` on, which the part has. For reading here and there; blocks.
  Status ReadAt(uint64_t image_begin, std::span<std::byte> into);

  const std::string& path() const { return path_; }

 private:
  uint64_t FileOffset(uint64_t image_offset) const {
    return image_offset - part_.image_begin + part_.data_offset;
  }
  /// Read() without the draining that must follow it.
  Status ReadQueued(const ReadTarget& target, const ReadPace& pace,
                    const std::function<Status(uint64_t end)>& on_read);
  /// The part's header, with the image bytes that share its last block.
  Status QueueHead();
  /// Image bytes from next_ on, up to `limit` at most, in pieces that end at multiples of a unit.
  Status QueueUntil(uint64_t limit, uint64_t unit_bytes, const ReadTarget& target);
  Status CheckHeaderCrc() const;

  std::string path_;
  SealPart part_;
  uint64_t image_bytes_;
  uint64_t head_end_ = 0;  // first image byte behind the blocks that the header takes part in
  uint64_t next_ = 0;      // first image byte not queued
  AlignedBuffer head_;     // outlive file_: its operations may use them
  AlignedBuffer tail_;
  AlignedBuffer blocks_;  // of ReadAt
  std::unique_ptr<BlockFile> file_;
};

}  // namespace holdfast
