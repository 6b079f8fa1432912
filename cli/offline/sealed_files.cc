#include "cli/offline/sealed_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fd.h"
#include "cli/core/interrupt.h"
#include "cli/offline/data_dirs.h"
#include "storage/format/checksum.h"
#include "storage/format/chunk.h"
#include "storage/volume/layout.h"

namespace holdfast::cli {

namespace {

/// A regular file opened for reading, and its length.
struct OpenedFile {
  std::string path;
  UniqueFd fd;
  uint64_t bytes = 0;

  static Result<OpenedFile> Open(const std::string& path) {
    // Non-blocking, so that a FIFO in place of a file does not block the command.
    OpenedFile file{path, UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK))};
    if (!file.fd.valid()) return Fail(ErrnoStatus(errno, "cannot open " + path));
    struct stat info {};
    if (::fstat(file.fd.get(), &info) != 0) return Fail(ErrnoStatus(errno, "cannot stat " + path));
    if (!S_ISREG(info.st_mode)) return Fail(InvalidArgumentError(path + " is not a regular file"));
    file.bytes = static_cast<uint64_t>(info.st_size);
    return file;
  }

  Status Read(uint64_t offset, std::span<std::byte> into) const {
    for (size_t done = 0; done < into.size();) {
      ssize_t n = ::pread(fd.get(), into.data() + done, into.size() - done,
                          static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, "cannot read " + path);
      if (n == 0)
        return DataLossError(
            fmt::format("{} ends at {}, before {}", path, offset + done, offset + into.size()));
      done += static_cast<size_t>(n);
    }
    return Status::Ok();
  }
};

/// Image bytes [begin, end) and their source: a file, or (null) the header in the seal.
struct Region {
  uint64_t begin = 0;
  uint64_t end = 0;
  const OpenedFile* file = nullptr;
  uint64_t file_offset = 0;
};

/// The files of one shard in one directory, addressed by image offsets.
class SealedFiles {
 public:
  SealedFiles(std::string dir, const ShardSeal& seal) : dir_(std::move(dir)), seal_(seal) {}

  /// Opens the parts that exist, and checks their lengths and headers. Adds the others to `absent`.
  Status OpenParts(std::vector<std::string>* absent) {
    auto count = static_cast<uint32_t>(seal_.parts.size());
    files_.reserve(count);
    if (count > 1) regions_.push_back({0, seal_.image_header.size(), nullptr, 0});
    for (uint32_t i = 0; i < count; ++i) {
      const SealPart& part = seal_.parts[i];
      std::string name = PartName(seal_.identity.rank, i, count);
      Result<OpenedFile> file = OpenedFile::Open(dir_ + "/" + name);
      if (!file && file.error().code() == ErrorCode::kNotFound) {
        absent->push_back(name);
        continue;
      }
      if (!file) return file.error();
      files_.push_back(*std::move(file));
      HOLDFAST_RETURN_IF_ERROR(CheckPart(files_.back(), part));
      regions_.push_back({part.image_begin, part.image_end, &files_.back(), part.data_offset});
    }
    return Status::Ok();
  }

  /// Compares with its checksum every chunk whose bytes are all in existing parts.
  Status CheckChunks(SealedFilesCheck* check, const std::function<void(uint64_t)>& progress) {
    std::vector<std::byte> chunk(kChunkBytes);
    for (uint64_t i = 0; i < seal_.chunk_crcs.size(); ++i) {
      const uint64_t begin = i * kChunkBytes;
      const std::span<std::byte> bytes(chunk.data(), ChunkBytes(seal_, i));
      HOLDFAST_ASSIGN_OR_RETURN(bool here, Assemble(begin, bytes));
      if (!here) continue;
      ++check->chunks_checked;
      if (!IsChunk(seal_, i, bytes)) return BadChunkError(seal_, i, "in " + NameAt(begin));
      progress(bytes.size());
      HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    }
    return Status::Ok();
  }

 private:
  Status CheckPart(const OpenedFile& file, const SealPart& part) const {
    if (file.bytes != part.file_bytes) {
      return DataLossError(
          fmt::format("{} has {} bytes instead of {}", file.path, file.bytes, part.file_bytes));
    }
    if (part.data_offset > part.file_bytes)
      return DataLossError(file.path + ": its seal has a data offset beyond the end of the file");
    if (part.data_offset == 0) return Status::Ok();
    std::vector<std::byte> header(part.data_offset);
    HOLDFAST_RETURN_IF_ERROR(file.Read(0, header));
    if (Crc32c(header) != part.header_crc)
      return DataLossError(file.path + ": its header does not match its checksum");
    return Status::Ok();
  }

  /// Fills `bytes` with the image from `begin`. Returns false when a part with some of it is
  /// absent.
  Result<bool> Assemble(uint64_t begin, std::span<std::byte> bytes) const {
    uint64_t at = begin;
    uint64_t end = begin + bytes.size();
    for (const Region& region : regions_) {
      if (at >= end || region.end <= at) continue;
      if (region.begin > at) return false;
      uint64_t until = std::min(end, region.end);
      std::span<std::byte> into = bytes.subspan(at - begin, until - at);
      if (region.file == nullptr) {
        std::memcpy(into.data(), seal_.image_header.data() + at, into.size());
      } else {
        HOLDFAST_RETURN_IF_ERROR(region.file->Read(region.file_offset + (at - region.begin), into));
      }
      at = until;
    }
    return at == end;
  }

  /// Returns the file that contains image offset `at`, for messages.
  std::string NameAt(uint64_t at) const {
    std::string name = dir_;
    for (const Region& region : regions_) {
      if (at >= region.begin && at < region.end && region.file != nullptr) name = region.file->path;
    }
    return name;
  }

  const std::string dir_;
  const ShardSeal& seal_;
  std::vector<OpenedFile> files_;
  std::vector<Region> regions_;
};

}  // namespace

SealedFilesCheck CheckSealedFiles(const std::string& dir, const ShardSeal& seal, bool deep,
                                  const std::function<void(uint64_t)>& progress) {
  SealedFilesCheck check;
  SealedFiles files(dir, seal);
  check.status = files.OpenParts(&check.absent);
  if (check.status.ok() && deep) check.status = files.CheckChunks(&check, progress);
  return check;
}

Result<ShardSeal> ReadSealFile(const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string bytes, ReadWholeFile(path, kSealBytesMax));
  Result<ShardSeal> seal = DecodeSeal(std::as_bytes(std::span(bytes)));
  if (!seal) return Fail(seal.error().WithContext(path));
  return seal;
}

Result<ParsedImage> ReadImageHeader(const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(OpenedFile file, OpenedFile::Open(path));
  std::vector<std::byte> head(std::min<uint64_t>(8, file.bytes));
  HOLDFAST_RETURN_IF_ERROR(file.Read(0, head));
  Result<uint64_t> bytes = HeaderBytes(head, file.bytes);
  if (!bytes) return Fail(bytes.error().WithContext(path));
  head.resize(*bytes);
  HOLDFAST_RETURN_IF_ERROR(file.Read(0, head));
  Result<ParsedImage> image = ParseImage(head, file.bytes);
  if (!image) return Fail(image.error().WithContext(path));
  return image;
}

Result<uint64_t> DigestOfFile(const std::string& path,
                              const std::function<void(uint64_t)>& progress) {
  HOLDFAST_ASSIGN_OR_RETURN(OpenedFile file, OpenedFile::Open(path));
  std::vector<std::byte> chunk(kChunkBytes);
  std::vector<uint32_t> crcs;
  for (uint64_t at = 0; at < file.bytes; at += kChunkBytes) {
    std::span<std::byte> bytes(chunk.data(), std::min(kChunkBytes, file.bytes - at));
    HOLDFAST_RETURN_IF_ERROR(file.Read(at, bytes));
    crcs.push_back(Crc32c(bytes));
    progress(bytes.size());
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
  }
  return DigestOf(file.bytes, crcs);
}

}  // namespace holdfast::cli
