#include "storage/io/uring_block_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/crash_point.h"
#include "base/log.h"
#include "storage/io/fd_directory.h"

namespace holdfast {
namespace {
constexpr uint32_t kStallsMax = 1000;

bool IsTransient(int error) { return error == EINTR || error == EAGAIN; }
}  // namespace

UringBlockFile::UringBlockFile(UniqueFd fd, std::string path, bool writable, UringPool& pool,
                               const IoOptions& options)
    : fd_(std::move(fd)),
      path_(std::move(path)),
      writable_(writable),
      pool_(pool),
      piece_bytes_(options.operation_bytes),
      slots_(options.queue_depth) {
  for (size_t slot = slots_.size(); slot-- > 0;) free_.push_back(slot);
}

UringBlockFile::~UringBlockFile() {
  Status status = Drain();
  if (!status.ok()) {
    Log(LogLevel::kDebug, "FileAbandoned", {Kv("path", path_), Kv("reason", status.ToString())});
  }
}

Status UringBlockFile::CheckWritable() const {
  if (writable_) return error_;
  return FailedPreconditionError(fmt::format("{} is open only for reading", path_));
}

Status UringBlockFile::EnsureRing() {
  if (ring_ != nullptr) return Status::Ok();
  Result<std::unique_ptr<UringRing>> ring = pool_.Borrow();
  if (!ring) {
    error_ = ring.error().WithContext(path_);
    return error_;
  }
  ring_ = *std::move(ring);
  return Status::Ok();
}

Status UringBlockFile::QueueWrite(uint64_t offset, std::span<const std::byte> bytes) {
  HOLDFAST_RETURN_IF_ERROR(CheckWritable());
  HOLDFAST_RETURN_IF_ERROR(CheckOperation(path_, offset, bytes));
  Piece whole;
  whole.write = true;
  whole.offset = offset;
  whole.memory = const_cast<std::byte*>(bytes.data());
  whole.bytes = bytes.size();
  return Queue(whole);
}

Status UringBlockFile::QueueRead(uint64_t offset, std::span<std::byte> into) {
  HOLDFAST_RETURN_IF_ERROR(error_);
  HOLDFAST_RETURN_IF_ERROR(CheckOperation(path_, offset, into));
  HOLDFAST_ASSIGN_OR_RETURN(uint64_t size, Size());
  if (!into.empty() && offset + into.size() > RoundUp(size, kBlockBytes)) {
    error_ = PastEndError(path_, offset, into.size(), size);
    return error_;
  }
  Piece whole;
  whole.offset = offset;
  whole.memory = into.data();
  whole.bytes = into.size();
  whole.end_of_file = size;
  return Queue(whole);
}

Status UringBlockFile::Queue(Piece whole) {
  if (whole.bytes > 0) HOLDFAST_RETURN_IF_ERROR(EnsureRing());
  // A ring of an older generation may have other memory registered at the same addresses.
  bool may_be_fixed = ring_ != nullptr && ring_->generation() == pool_.generation();
  uint64_t at = 0;
  while (at < whole.bytes) {
    if (free_.empty()) {
      Submit();
      if (error_.ok() && free_.empty()) WaitOne();
      TakeCompletions();
    }
    HOLDFAST_RETURN_IF_ERROR(error_);
    if (free_.empty()) continue;
    size_t slot = free_.back();
    free_.pop_back();
    Piece& piece = slots_[slot];
    piece = whole;
    piece.offset += at;
    piece.memory += at;
    piece.bytes = std::min(piece_bytes_, whole.bytes - at);
    if (may_be_fixed) {
      if (std::optional<UringRing::Fixed> fixed = ring_->Find(piece.memory)) {
        piece.fixed = true;
        piece.buffer_index = fixed->index;
        piece.bytes = std::min(piece.bytes, fixed->bytes);
      }
    }
    at += piece.bytes;
    Prepare(slot);
  }
  if (ring_ != nullptr) {
    Submit();
    TakeCompletions();
  }
  return error_;
}

void UringBlockFile::Prepare(size_t slot) const {
  const Piece& piece = slots_[slot];
  // The ring has as many entries as there are slots, and each slot uses at most one: an entry is
  // always free.
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_->ring());
  std::byte* memory = piece.memory + piece.done;
  auto bytes = static_cast<unsigned>(piece.bytes - piece.done);
  uint64_t offset = piece.offset + piece.done;
  if (piece.write && piece.fixed) {
    io_uring_prep_write_fixed(sqe, fd_.get(), memory, bytes, offset, piece.buffer_index);
  } else if (piece.write) {
    io_uring_prep_write(sqe, fd_.get(), memory, bytes, offset);
  } else if (piece.fixed) {
    io_uring_prep_read_fixed(sqe, fd_.get(), memory, bytes, offset, piece.buffer_index);
  } else {
    io_uring_prep_read(sqe, fd_.get(), memory, bytes, offset);
  }
  io_uring_sqe_set_data64(sqe, slot);
}

void UringBlockFile::Submit() const {
  while (ring_ != nullptr && io_uring_sq_ready(&ring_->ring()) > 0) {
    int submitted = io_uring_submit(&ring_->ring());
    if (submitted >= 0 || IsTransient(-submitted)) continue;
    if (submitted == -EBUSY) {
      WaitOne();  // the completion queue is full
      TakeCompletions();
      continue;
    }
    AbandonRing(ErrnoStatus(-submitted, fmt::format("submit I/O on {}", path_)));
  }
}

void UringBlockFile::WaitOne() const {
  io_uring_cqe* cqe = nullptr;
  while (ring_ != nullptr) {
    int error = io_uring_wait_cqe(&ring_->ring(), &cqe);
    if (error == 0) return;
    if (!IsTransient(-error)) {
      AbandonRing(ErrnoStatus(-error, fmt::format("wait for I/O on {}", path_)));
    }
  }
}

void UringBlockFile::TakeCompletions() const {
  io_uring_cqe* cqe = nullptr;
  while (ring_ != nullptr && io_uring_peek_cqe(&ring_->ring(), &cqe) == 0) {
    auto slot = static_cast<size_t>(io_uring_cqe_get_data64(cqe));
    int result = cqe->res;
    io_uring_cqe_seen(&ring_->ring(), cqe);
    Complete(slot, result);
  }
  Submit();  // the resumed pieces
}

void UringBlockFile::Complete(size_t slot, int result) const {
  Piece& piece = slots_[slot];
  const char* verb = piece.write ? "write" : "read";
  uint64_t offset = piece.offset + piece.done;
  if (result < 0 && !IsTransient(-result)) {
    return Finish(slot,
                  ErrnoStatus(-result, fmt::format("{} {} at offset {}", verb, path_, offset)));
  }
  if (piece.write) HOLDFAST_CRASH_POINT("io.after_write");
  uint64_t reached = piece.done + static_cast<uint64_t>(std::max(result, 0));
  // The file's last block may be incomplete.
  if (reached >= piece.bytes || (!piece.write && piece.offset + reached >= piece.end_of_file)) {
    return Finish(slot, Status::Ok());
  }
  if (!piece.write && result == 0) {
    return Finish(slot, PastEndError(path_, piece.offset, piece.bytes, piece.offset + reached));
  }
  // Direct I/O must resume at the start of a block, so a partial block is transferred again.
  uint64_t resumed = reached / kBlockBytes * kBlockBytes;
  piece.stalls = resumed > piece.done ? 0 : piece.stalls + 1;
  piece.done = std::max(piece.done, resumed);
  if (piece.stalls > kStallsMax) {
    return Finish(slot, IoErrorError(fmt::format("{} {} at offset {}: gave up after {} attempts "
                                                 "that transferred nothing",
                                                 verb, path_, offset, piece.stalls)));
  }
  Prepare(slot);
}

void UringBlockFile::Finish(size_t slot, Status status) const {
  const Piece& piece = slots_[slot];
  if (status.ok()) {
    done_.Add(piece.offset, piece.bytes);
  } else if (error_.ok()) {
    error_ = std::move(status);
  }
  free_.push_back(slot);
}

uint64_t UringBlockFile::CompletedPrefix() const {
  TakeCompletions();
  return done_.prefix();
}

Status UringBlockFile::WaitPrefix(uint64_t bytes) {
  TakeCompletions();
  while (done_.prefix() < bytes && error_.ok() && free_.size() < slots_.size()) {
    WaitOne();
    TakeCompletions();
  }
  HOLDFAST_RETURN_IF_ERROR(error_);
  if (done_.prefix() >= bytes) return Status::Ok();
  return NeverQueuedError(path_, bytes, done_.prefix());
}

Status UringBlockFile::Drain() {
  TakeCompletions();
  while (ring_ != nullptr && free_.size() < slots_.size()) {
    WaitOne();
    TakeCompletions();
  }
  ReturnRing();
  return error_;
}

void UringBlockFile::ReturnRing() const {
  if (ring_ != nullptr) pool_.Return(std::move(ring_));
}

void UringBlockFile::AbandonRing(Status status) const {
  if (error_.ok()) error_ = std::move(status);
  // Operations that the kernel has accepted still access the caller's memory: wait for them.
  size_t taken = slots_.size() - free_.size() - io_uring_sq_ready(&ring_->ring());
  io_uring_cqe* cqe = nullptr;
  while (taken > 0) {
    int error = io_uring_wait_cqe(&ring_->ring(), &cqe);
    if (error < 0 && !IsTransient(-error)) break;
    if (error < 0) continue;
    io_uring_cqe_seen(&ring_->ring(), cqe);
    --taken;
  }
  ring_.reset();
  free_.clear();
  for (size_t slot = 0; slot < slots_.size(); ++slot) free_.push_back(slot);
}

Status UringBlockFile::Allocate(uint64_t bytes) {
  HOLDFAST_RETURN_IF_ERROR(CheckWritable());
  return AllocateFd(fd_.get(), path_, bytes);
}

Status UringBlockFile::Truncate(uint64_t bytes) {
  HOLDFAST_RETURN_IF_ERROR(CheckWritable());
  HOLDFAST_RETURN_IF_ERROR(Drain());
  return TruncateFd(fd_.get(), path_, bytes);
}

Result<uint64_t> UringBlockFile::Size() const { return SizeOfFd(fd_.get(), path_); }

Status UringBlockFile::Sync() {
  HOLDFAST_RETURN_IF_ERROR(Drain());
  error_ = SyncFd(fd_.get(), path_);
  return error_;
}

}  // namespace holdfast
