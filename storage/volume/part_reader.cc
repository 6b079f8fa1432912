#include "storage/volume/part_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "storage/format/checksum.h"
#include "storage/format/image.h"

namespace holdfast {

ReadPace PaceOf(const IoOptions& io) {
  ReadPace pace;
  pace.unit_bytes = std::max(RoundDownTo(io.operation_bytes, kBlockBytes), kBlockBytes);
  pace.ahead_bytes = std::max(pace.unit_bytes * io.queue_depth, 2 * kChunkBytes);
  return pace;
}

PartReader::PartReader(std::string path, const SealPart& part, uint64_t image_bytes,
                       std::unique_ptr<BlockFile> file)
    : path_(std::move(path)), part_(part), image_bytes_(image_bytes), file_(std::move(file)) {
  uint64_t head_bytes = RoundUpTo(part_.data_offset, kBlockBytes);
  head_end_ = std::min(part_.image_end, part_.image_begin + head_bytes - part_.data_offset);
  next_ = head_end_;
}

Result<std::unique_ptr<PartReader>> PartReader::Open(Directory& dir, const std::string& path,
                                                     const SealPart& part, uint64_t image_bytes) {
  std::string full = dir.path() + "/" + path;
  constexpr uint64_t kHeadBytesMax = kHeaderBytesMax + 2 * kImageAlign;
  if (part.data_offset > kHeadBytesMax ||
      part.data_offset % kImageAlign != part.image_begin % kImageAlign) {
    return Fail(
        DataLossError(fmt::format("{}: its seal places the data at offset {}, which is not valid "
                                  "for a part file",
                                  full, part.data_offset)));
  }
  auto file = dir.OpenFile(path, OpenMode::kRead);
  if (!file) {
    if (file.error().code() != ErrorCode::kNotFound) return Fail(file.error());
    return Fail(DataLossError(full + " is missing"));
  }
  HOLDFAST_ASSIGN_OR_RETURN(uint64_t bytes, (*file)->Size());
  if (bytes != part.file_bytes) {
    return Fail(DataLossError(
        fmt::format("{} has {} bytes, but its seal has {}", full, bytes, part.file_bytes)));
  }
  return std::make_unique<PartReader>(std::move(full), part, image_bytes, *std::move(file));
}

Status PartReader::QueueHead() {
  if (part_.data_offset == 0) return Status::Ok();
  HOLDFAST_ASSIGN_OR_RETURN(head_, AlignedBuffer::Allocate(part_.data_offset));
  return file_->QueueRead(0, head_.span());
}

Status PartReader::CheckHeaderCrc() const {
  if (Crc32c(head_.span().first(part_.data_offset)) == part_.header_crc) return Status::Ok();
  return DataLossError(fmt::format("the header (bytes 0-{}) of {} does not match its checksum",
                                   part_.data_offset - 1, path_));
}

Status PartReader::CheckHeader() {
  if (part_.data_offset == 0) return Status::Ok();
  HOLDFAST_RETURN_IF_ERROR(QueueHead());
  HOLDFAST_RETURN_IF_ERROR(file_->Drain());
  return CheckHeaderCrc();
}

Status PartReader::QueueUntil(uint64_t limit, uint64_t unit_bytes, const ReadTarget& target) {
  const uint64_t end = part_.image_end;
  // The image's last block may be read completely: the target has space for it. A block that
  // the next part shares goes through a buffer.
  const bool whole_tail = end == image_bytes_;
  const uint64_t direct_end =
      whole_tail ? RoundUpTo(end, kBlockBytes) : RoundDownTo(end, kBlockBytes);
  limit = RoundDownTo(limit, kBlockBytes);
  while (next_ < end && next_ < limit) {
    uint64_t ring_end = RoundDownTo(next_, target.ring_bytes) + target.ring_bytes;
    uint64_t stop =
        std::min({RoundDownTo(next_ + unit_bytes, unit_bytes), limit, direct_end, ring_end});
    if (stop > next_) {
      HOLDFAST_RETURN_IF_ERROR(
          file_->QueueRead(FileOffset(next_), {target.At(next_), stop - next_}));
      next_ = std::min(stop, end);
      continue;
    }
    HOLDFAST_ASSIGN_OR_RETURN(tail_, AlignedBuffer::Allocate(kBlockBytes));
    HOLDFAST_RETURN_IF_ERROR(file_->QueueRead(FileOffset(next_), tail_.span()));
    next_ = end;
  }
  return Status::Ok();
}

Status PartReader::ReadQueued(const ReadTarget& target, const ReadPace& pace,
                              const std::function<Status(uint64_t end)>& on_read) {
  const uint64_t begin = part_.image_begin;
  const uint64_t end = part_.image_end;
  HOLDFAST_RETURN_IF_ERROR(QueueHead());
  uint64_t done = begin;
  bool head_pending = part_.data_offset > 0;
  while (done < end || head_pending) {
    uint64_t chunk_begin = RoundDownTo(done, kChunkBytes);
    uint64_t chunk_end = std::min(end, chunk_begin + kChunkBytes);
    uint64_t limit = chunk_begin + std::min(pace.ahead_bytes, target.ring_bytes);
    // Only complete units: one for each chunk that is done would be smaller.
    if (limit < end) limit = std::max(RoundDownTo(limit, pace.unit_bytes), chunk_end);
    HOLDFAST_RETURN_IF_ERROR(QueueUntil(limit, pace.unit_bytes, target));
    HOLDFAST_RETURN_IF_ERROR(chunk_end == end ? file_->Drain()
                                              : file_->WaitPrefix(FileOffset(chunk_end)));
    if (head_pending) {
      HOLDFAST_RETURN_IF_ERROR(CheckHeaderCrc());
      std::memcpy(target.At(begin), head_.data() + part_.data_offset, head_end_ - begin);
      head_pending = false;
    }
    if (chunk_end == end && tail_.size() > 0) {
      uint64_t tail_begin = RoundDownTo(end, kBlockBytes);
      std::memcpy(target.At(tail_begin), tail_.data(), end - tail_begin);
    }
    HOLDFAST_RETURN_IF_ERROR(on_read(chunk_end));
    done = chunk_end;
  }
  return Status::Ok();
}

Status PartReader::Read(const ReadTarget& target, const ReadPace& pace,
                        const std::function<Status(uint64_t end)>& on_read) {
  Status read = ReadQueued(target, pace, on_read);
  // No operation may use the caller's memory after the return, even if the reading ended early.
  Status drained = file_->Drain();
  return read.ok() ? drained : read;
}

Status PartReader::ReadAt(uint64_t image_begin, std::span<std::byte> into) {
  const uint64_t begin = FileOffset(image_begin);
  const uint64_t first = RoundDownTo(begin, kBlockBytes);
  const uint64_t bytes = RoundUpTo(begin + into.size(), kBlockBytes) - first;
  if (blocks_.size() < bytes) {
    HOLDFAST_ASSIGN_OR_RETURN(blocks_, AlignedBuffer::Allocate(bytes));
  }
  const Status queued = file_->QueueRead(first, blocks_.span().first(bytes));
  HOLDFAST_RETURN_IF_ERROR(file_->Drain());
  HOLDFAST_RETURN_IF_ERROR(queued);
  std::memcpy(into.data(), blocks_.data() + (begin - first), into.size());
  return Status::Ok();
}

}  // namespace holdfast
