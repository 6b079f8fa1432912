#include "storage/io/posix_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/crash_point.h"
#include "storage/io/queue_rules.h"

namespace holdfast {
namespace {

constexpr uint64_t kPieceBytes = 4ULL << 20;

class PosixBlockFile final : public BlockFile {
 public:
  PosixBlockFile(UniqueFd fd, std::string path, bool writable)
      : fd_(std::move(fd)), path_(std::move(path)), writable_(writable) {}

  Status QueueWrite(uint64_t offset, std::span<const std::byte> bytes) override;
  Status QueueRead(uint64_t offset, std::span<std::byte> into) override;
  uint64_t CompletedPrefix() const override { return done_.prefix(); }
  Status WaitPrefix(uint64_t bytes) override;
  Status Drain() override { return error_; }
  Status Allocate(uint64_t bytes) override;
  Status Truncate(uint64_t bytes) override;
  Result<uint64_t> Size() const override { return SizeOfFd(fd_.get(), path_); }
  Status Sync() override;

 private:
  Status CheckWritable() const;
  /// Stores the file's first error and returns it.
  Status KeepFirst(Status status);

  UniqueFd fd_;
  const std::string path_;
  const bool writable_;
  PrefixTracker done_;
  Status error_;  // the first error; once set, the file is unusable
};

Status PosixBlockFile::CheckWritable() const {
  if (writable_) return error_;
  return FailedPreconditionError(fmt::format("{} is open only for reading", path_));
}

Status PosixBlockFile::KeepFirst(Status status) {
  if (error_.ok()) error_ = std::move(status);
  return error_;
}

Status PosixBlockFile::QueueWrite(uint64_t offset, std::span<const std::byte> bytes) {
  HOLDFAST_RETURN_IF_ERROR(CheckWritable());
  HOLDFAST_RETURN_IF_ERROR(CheckOperation(path_, offset, bytes));
  while (!bytes.empty()) {
    size_t length = std::min<uint64_t>(bytes.size(), kPieceBytes);
    ssize_t written = ::pwrite(fd_.get(), bytes.data(), length, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return KeepFirst(ErrnoStatus(errno, fmt::format("write {} at offset {}", path_, offset)));
    }
    if (written == 0) {
      return KeepFirst(IoErrorError(
          fmt::format("write {} at offset {}: the kernel accepted no bytes", path_, offset)));
    }
    HOLDFAST_CRASH_POINT("io.after_write");
    // A hint: file systems that do not support it write back later.
    static_cast<void>(
        ::sync_file_range(fd_.get(), static_cast<off_t>(offset), written, SYNC_FILE_RANGE_WRITE));
    done_.Add(offset, static_cast<uint64_t>(written));
    offset += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return Status::Ok();
}

Status PosixBlockFile::QueueRead(uint64_t offset, std::span<std::byte> into) {
  HOLDFAST_RETURN_IF_ERROR(error_);
  HOLDFAST_RETURN_IF_ERROR(CheckOperation(path_, offset, into));
  uint64_t start = offset;
  uint64_t end = offset + into.size();
  while (offset < end) {
    size_t length = std::min(end - offset, kPieceBytes);
    ssize_t got =
        ::pread(fd_.get(), into.data() + (offset - start), length, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return KeepFirst(ErrnoStatus(errno, fmt::format("read {} at offset {}", path_, offset)));
    }
    if (got == 0) {
      // The file's last block may be incomplete; a block that is missing completely is an error.
      if (offset % kBlockBytes != 0 && end - offset < kBlockBytes) break;
      return KeepFirst(PastEndError(path_, start, into.size(), offset));
    }
    offset += static_cast<uint64_t>(got);
  }
  done_.Add(start, into.size());
  return Status::Ok();
}

Status PosixBlockFile::WaitPrefix(uint64_t bytes) {
  HOLDFAST_RETURN_IF_ERROR(error_);
  if (done_.prefix() >= bytes) return Status::Ok();
  return NeverQueuedError(path_, bytes, done_.prefix());
}

Status PosixBlockFile::Allocate(uint64_t bytes) {
  HOLDFAST_RETURN_IF_ERROR(CheckWritable());
  return AllocateFd(fd_.get(), path_, bytes);
}

Status PosixBlockFile::Truncate(uint64_t bytes) {
  HOLDFAST_RETURN_IF_ERROR(CheckWritable());
  return TruncateFd(fd_.get(), path_, bytes);
}

Status PosixBlockFile::Sync() {
  HOLDFAST_RETURN_IF_ERROR(error_);
  return KeepFirst(SyncFd(fd_.get(), path_));
}

}  // namespace

Result<std::unique_ptr<BlockFile>> PosixDirectory::OpenFile(const std::string& path,
                                                            OpenMode mode) {
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, OpenRegular(path, mode, 0));
  return std::make_unique<PosixBlockFile>(std::move(fd), Full(path),
                                          mode == OpenMode::kCreateExclusive);
}

}  // namespace holdfast
