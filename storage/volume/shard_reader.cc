#include "storage/volume/shard_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/mutex.h"
#include "storage/format/checksum.h"
#include "storage/format/chunk.h"
#include "storage/volume/aligned_buffer.h"
#include "storage/volume/async_task.h"
#include "storage/volume/layout.h"
#include "storage/volume/part_reader.h"

namespace holdfast {
namespace {

/// The most memory of a deep check.
constexpr uint64_t kRingBytes = 16 * kChunkBytes;

Result<std::unique_ptr<PartReader>> OpenPart(const DirectoryList& dirs, const ShardSeal& seal,
                                             uint32_t part) {
  auto count = static_cast<uint32_t>(seal.parts.size());
  std::string path = VersionPath(seal.identity.job, seal.identity.version) + "/" +
                     PartName(seal.identity.rank, part, count);
  return PartReader::Open(*dirs[part], path, seal.parts[part], seal.image_bytes);
}

Result<std::vector<std::unique_ptr<PartReader>>> OpenParts(const DirectoryList& dirs,
                                                           const ShardSeal& seal) {
  std::vector<std::unique_ptr<PartReader>> readers;
  for (uint32_t part = 0; part < seal.parts.size(); ++part) {
    HOLDFAST_ASSIGN_OR_RETURN(auto reader, OpenPart(dirs, seal, part));
    readers.push_back(std::move(reader));
  }
  return readers;
}

class FileChunks final : public ShardChunks {
 public:
  FileChunks(const DirectoryList& dirs, ShardSeal seal,
             std::vector<std::unique_ptr<PartReader>> parts)
      : dirs_(dirs), seal_(std::move(seal)), parts_(std::move(parts)), chunk_(kChunkBytes) {}

  const ShardSeal& seal() const override { return seal_; }

  Result<std::span<const std::byte>> Read(uint64_t index) override {
    if (index >= seal_.chunk_crcs.size()) {
      return Fail(InvalidArgumentError(
          fmt::format("a shard of {} chunks has no chunk {}", seal_.chunk_crcs.size(), index)));
    }
    const uint64_t begin = index * kChunkBytes;
    const auto bytes = std::span(chunk_).first(ChunkBytes(seal_, index));
    const uint64_t end = begin + bytes.size();
    // With several parts, the seal contains the image bytes before the first part.
    const auto header = std::as_bytes(std::span(seal_.image_header));
    if (begin < header.size()) {
      std::memcpy(bytes.data(), header.data() + begin,
                  std::min<uint64_t>(header.size() - begin, bytes.size()));
    }
    for (size_t part = 0; part < parts_.size(); ++part) {
      const uint64_t from = std::max(begin, seal_.parts[part].image_begin);
      const uint64_t to = std::min(end, seal_.parts[part].image_end);
      if (from >= to) continue;
      HOLDFAST_RETURN_IF_ERROR(parts_[part]->ReadAt(from, bytes.subspan(from - begin, to - from)));
    }
    HOLDFAST_RETURN_IF_ERROR(CheckChunk(dirs_, seal_, index, bytes));
    return std::span<const std::byte>(bytes);
  }

 private:
  const DirectoryList& dirs_;
  const ShardSeal seal_;
  std::vector<std::unique_ptr<PartReader>> parts_;
  std::vector<std::byte> chunk_;
};

/// Compares chunks of an image in a target with the seal's checksums.
class ChunkChecker {
 public:
  ChunkChecker(const DirectoryList& dirs, const ShardSeal& seal, const ReadTarget& target)
      : dirs_(dirs), seal_(seal), target_(target) {}

  uint64_t End(uint64_t chunk) const {
    return std::min(seal_.image_bytes, (chunk + 1) * kChunkBytes);
  }
  Status Check(uint64_t chunk) const {
    uint64_t begin = chunk * kChunkBytes;
    return Compare(chunk, {target_.At(begin), End(chunk) - begin});
  }
  /// With several parts, the seal contains the image's header. Verifies the header's complete
  /// chunks and copies its rest, which shares a chunk with the first part, into the target. With
  /// `copy_all`, copies the complete header into the target.
  Status TakeHeader(bool copy_all) const {
    std::span<const std::byte> header = std::as_bytes(std::span(seal_.image_header));
    if (copy_all && !header.empty()) std::memcpy(target_.base, header.data(), header.size());
    uint64_t done = 0;
    for (; done + kChunkBytes <= header.size(); done += kChunkBytes) {
      HOLDFAST_RETURN_IF_ERROR(Compare(done / kChunkBytes, header.subspan(done, kChunkBytes)));
    }
    if (done < header.size()) {
      std::memcpy(target_.At(done), header.data() + done, header.size() - done);
    }
    return Status::Ok();
  }

 private:
  Status Compare(uint64_t chunk, std::span<const std::byte> bytes) const {
    return CheckChunk(dirs_, seal_, chunk, bytes);
  }

  const DirectoryList& dirs_;
  const ShardSeal& seal_;
  const ReadTarget& target_;
};

/// Reads the parts of one shard in parallel, each on its own thread.
class ParallelRead {
 public:
  ParallelRead(const ShardSeal& seal, const ChunkChecker& checker)
      : seal_(seal), checker_(checker) {
    for (const SealPart& part : seal.parts) checked_.push_back(part.image_begin);
    // The image's header is already in place when the parts are read.
    checked_[0] = RoundDownTo(checked_[0], kChunkBytes);
  }

  Status Run(std::vector<std::unique_ptr<PartReader>>& readers, const ReadTarget& target,
             const ReadPace& pace, const std::function<void(uint64_t)>& progress) {
    std::vector<std::future<Status>> running;
    for (size_t i = 0; i < readers.size(); ++i) {
      auto read_part = [&, i] {
        Status read =
            readers[i]->Read(target, pace, [&, i](uint64_t end) { return OnRead(i, end); });
        MutexLock lock(mutex_);
        ++finished_;
        failed_ = failed_ || !read.ok();
        changed_.NotifyAll();
        return read;
      };
      running.push_back(RunAsync(read_part, seal_.image_bytes >= kMinBytesForThreads));
      // A part without its own thread is read here.
      if (running.back().wait_for(std::chrono::seconds(0)) == std::future_status::deferred) {
        running.back().wait();
      }
    }
    ReportProgress(readers.size(), progress);
    Status first_error;
    for (auto& one : running) {
      Status status = one.get();
      // kCancelled only reports that another part failed: prefer that part's error.
      bool secondary = first_error.code() == ErrorCode::kCancelled;
      if (!status.ok() && (first_error.ok() || secondary)) first_error = std::move(status);
    }
    HOLDFAST_RETURN_IF_ERROR(first_error);
    return CheckSharedChunks();
  }

 private:
  uint64_t OwnBegin(size_t part) const { return part == 0 ? 0 : seal_.parts[part].image_begin; }

  Status OnRead(size_t part, uint64_t end) {
    uint64_t chunk = (end - 1) / kChunkBytes;
    bool own = chunk * kChunkBytes >= OwnBegin(part) && end == checker_.End(chunk);
    if (own) HOLDFAST_RETURN_IF_ERROR(checker_.Check(chunk));
    MutexLock lock(mutex_);
    if (failed_) return CancelledError("another part of the shard could not be read");
    // A chunk that the next part shares is not verified yet.
    checked_[part] = end == checker_.End(chunk) ? end : RoundDownTo(end, kChunkBytes);
    changed_.NotifyAll();
    return Status::Ok();
  }

  /// Returns the verified bytes from the start without a gap.
  uint64_t CheckedPrefix() const HOLDFAST_REQUIRES(mutex_) {
    uint64_t prefix = checked_[0];
    for (size_t i = 1; i < checked_.size() && prefix == seal_.parts[i].image_begin; ++i) {
      prefix = checked_[i];
    }
    return prefix;
  }

  void ReportProgress(size_t count, const std::function<void(uint64_t)>& progress) {
    uint64_t reported = 0;
    MutexLock lock(mutex_);
    while (true) {
      uint64_t prefix = CheckedPrefix();
      bool finished = finished_ == count;
      if (prefix > reported && progress) {
        reported = prefix;
        mutex_.Unlock();
        progress(prefix);
        mutex_.Lock();
        continue;
      }
      if (finished) return;
      changed_.Wait(mutex_);
    }
  }

  Status CheckSharedChunks() const {
    uint64_t last = kNoChunk;
    for (size_t i = 1; i < seal_.parts.size(); ++i) {
      uint64_t cut = seal_.parts[i].image_begin;
      uint64_t chunk = cut / kChunkBytes;
      if (cut % kChunkBytes == 0 || chunk == last) continue;
      HOLDFAST_RETURN_IF_ERROR(checker_.Check(chunk));
      last = chunk;
    }
    return Status::Ok();
  }

  const ShardSeal& seal_;
  const ChunkChecker& checker_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<uint64_t> checked_ HOLDFAST_GUARDED_BY(mutex_);
  size_t finished_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  bool failed_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

}  // namespace

Status CheckChunk(const DirectoryList& dirs, const ShardSeal& seal, uint64_t index,
                  std::span<const std::byte> bytes) {
  if (IsChunk(seal, index, bytes)) return Status::Ok();
  const uint64_t begin = index * kChunkBytes;
  const uint64_t end = begin + ChunkBytes(seal, index);
  const auto count = static_cast<uint32_t>(seal.parts.size());
  std::string files;
  for (uint32_t part = 0; part < count; ++part) {
    const SealPart& where = seal.parts[part];
    if (where.image_end <= begin || where.image_begin >= end) continue;
    if (!files.empty()) files += " or ";
    files += dirs[part]->path() + "/" + VersionPath(seal.identity.job, seal.identity.version) +
             "/" + PartName(seal.identity.rank, part, count);
  }
  return BadChunkError(seal, index, "in " + files);
}

Result<ShardSeal> LoadSeal(const DirectoryList& dirs, const ShardKey& key) {
  std::string path = VersionPath(key.job, key.version) + "/" + SealName(key.rank);
  std::string full = dirs[0]->path() + "/" + path;
  HOLDFAST_ASSIGN_OR_RETURN(std::string bytes, dirs[0]->ReadSmallFile(path, kSealBytesMax));
  auto seal = DecodeSeal(std::as_bytes(std::span(bytes)));
  if (!seal) return Fail(seal.error().WithContext(full));
  if (seal->identity.key() != key) {
    return Fail(
        DataLossError(full + " is the seal of another shard, " + ToString(seal->identity.key())));
  }
  if (seal->parts.empty() || seal->parts.size() > dirs.size()) {
    return Fail(
        DataLossError(fmt::format("{}: the shard has {} parts, but the volume has {} data "
                                  "directories",
                                  full, seal->parts.size(), dirs.size())));
  }
  return seal;
}

Result<std::unique_ptr<ShardChunks>> OpenShardChunks(const DirectoryList& dirs, ShardSeal seal) {
  HOLDFAST_ASSIGN_OR_RETURN(auto parts, OpenParts(dirs, seal));
  return std::make_unique<FileChunks>(dirs, std::move(seal), std::move(parts));
}

Status CheckFiles(const DirectoryList& dirs, const ShardSeal& seal) {
  HOLDFAST_ASSIGN_OR_RETURN([[maybe_unused]] auto readers, OpenParts(dirs, seal));
  return Status::Ok();
}

Status CheckStructure(const DirectoryList& dirs, const ShardSeal& seal) {
  HOLDFAST_ASSIGN_OR_RETURN(auto readers, OpenParts(dirs, seal));
  for (auto& reader : readers) HOLDFAST_RETURN_IF_ERROR(reader->CheckHeader());
  if (seal.parts.size() > 1 || seal.image_bytes == 0) return Status::Ok();
  // In a shard of one part, the first chunk contains the image's header and so its identity.
  HOLDFAST_ASSIGN_OR_RETURN(AlignedBuffer first,
                            AlignedBuffer::Allocate(std::min(seal.image_bytes, kChunkBytes)));
  ReadTarget target{first.data(), kChunkBytes};
  ChunkChecker checker(dirs, seal, target);
  bool checked = false;
  Status status = readers[0]->Read(target, {kChunkBytes, kChunkBytes}, [&](uint64_t) {
    if (checked) return CancelledError("the first chunk is enough");
    checked = true;
    return checker.Check(0);
  });
  return status.code() == ErrorCode::kCancelled ? Status::Ok() : status;
}

Status CheckDeep(const DirectoryList& dirs, const ShardSeal& seal, const IoOptions& io) {
  return StreamImage(dirs, seal, io, nullptr);
}

Status StreamImage(const DirectoryList& dirs, const ShardSeal& seal, const IoOptions& io,
                   const std::function<Status(uint64_t, std::span<const std::byte>)>& sink) {
  HOLDFAST_ASSIGN_OR_RETURN(auto readers, OpenParts(dirs, seal));
  uint64_t ring_bytes = std::min(kRingBytes, RoundUpTo(seal.image_bytes, kChunkBytes));
  HOLDFAST_ASSIGN_OR_RETURN(AlignedBuffer ring, AlignedBuffer::Allocate(ring_bytes));
  ReadTarget target{ring.data(), ring_bytes};
  ChunkChecker checker(dirs, seal, target);
  HOLDFAST_RETURN_IF_ERROR(checker.TakeHeader(false));
  // Complete chunks of a header in the seal do not pass through the ring.
  std::span<const std::byte> header = std::as_bytes(std::span(seal.image_header));
  for (uint64_t done = 0; sink && done + kChunkBytes <= header.size(); done += kChunkBytes) {
    HOLDFAST_RETURN_IF_ERROR(sink(done, header.subspan(done, kChunkBytes)));
  }
  for (auto& reader : readers) {
    HOLDFAST_RETURN_IF_ERROR(reader->Read(target, PaceOf(io), [&](uint64_t end) {
      uint64_t chunk = (end - 1) / kChunkBytes;
      if (end != checker.End(chunk)) return Status::Ok();
      Status checked = checker.Check(chunk);
      if (!checked.ok() || !sink) return checked;
      uint64_t begin = chunk * kChunkBytes;
      return sink(begin, {target.At(begin), end - begin});
    }));
    reader.reset();
  }
  return Status::Ok();
}

Status ReadImage(const DirectoryList& dirs, const ShardSeal& seal, const IoOptions& io,
                 std::span<std::byte> into, const std::function<void(uint64_t)>& progress) {
  if (into.size() < seal.image_bytes ||
      reinterpret_cast<uintptr_t>(into.data()) % kBlockBytes != 0) {
    return InvalidArgumentError(
        fmt::format("{} needs {} bytes of memory aligned to {}, not {} bytes at {:#x}",
                    ToString(seal.identity.key()), seal.image_bytes, kBlockBytes, into.size(),
                    reinterpret_cast<uintptr_t>(into.data())));
  }
  HOLDFAST_ASSIGN_OR_RETURN(auto readers, OpenParts(dirs, seal));
  ReadTarget target{into.data(), RoundUpTo(std::max<uint64_t>(seal.image_bytes, 1), kChunkBytes)};
  ChunkChecker checker(dirs, seal, target);
  if (readers.size() == 1) {
    return readers[0]->Read(target, PaceOf(io), [&](uint64_t end) {
      Status checked = checker.Check((end - 1) / kChunkBytes);
      if (checked.ok() && progress) progress(end);
      return checked;
    });
  }
  HOLDFAST_RETURN_IF_ERROR(checker.TakeHeader(true));
  ParallelRead parallel(seal, checker);
  HOLDFAST_RETURN_IF_ERROR(parallel.Run(readers, target, PaceOf(io), progress));
  if (progress) progress(seal.image_bytes);
  return Status::Ok();
}

}  // namespace holdfast
