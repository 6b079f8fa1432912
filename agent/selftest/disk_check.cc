#include "agent/selftest/disk_check.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "agent/selftest/pattern.h"
#include "storage/volume/aligned_buffer.h"

namespace holdfast::selftest {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kBlock = uint64_t{4} << 20U;
constexpr uint64_t kInFlight = 8;  // blocks

/// Fills a block with words that depend on their position in the file, so that a misplaced block is
/// detected.
void Fill(std::span<std::byte> block, uint64_t offset) {
  for (uint64_t i = 0; i < block.size(); i += sizeof(uint64_t)) {
    const uint64_t word = PatternWord(offset + i);
    std::memcpy(&block[i], &word, sizeof(word));
  }
}

class DiskCheck {
 public:
  DiskCheck(Directory& directory, const DiskCheckOptions& options)
      : directory_(directory), options_(options) {}

  Status Run(CheckResult& result) {
    HOLDFAST_ASSIGN_OR_RETURN(const uint64_t free, directory_.FreeBytes());
    const uint64_t wanted = std::max(options_.bytes, kBlock);
    const uint64_t bytes = RoundDownTo(std::min(wanted, free / 4), kBlock);
    if (bytes == 0) {
      return OutOfSpaceError(
          fmt::format("only {} MiB are free, too little for a test: free some space", free >> 20U));
    }
    HOLDFAST_ASSIGN_OR_RETURN(buffer_, AlignedBuffer::Allocate(kInFlight * kBlock));
    HOLDFAST_ASSIGN_OR_RETURN(expected_, AlignedBuffer::Allocate(kBlock));
    const std::string name = fmt::format("self-test-{}", ::getpid());
    HOLDFAST_ASSIGN_OR_RETURN(file_, directory_.OpenFile(name, OpenMode::kCreateExclusive));
    // From here on the file disappears with this process.
    HOLDFAST_RETURN_IF_ERROR(directory_.RemoveFile(name));
    HOLDFAST_RETURN_IF_ERROR(Write(bytes));
    HOLDFAST_RETURN_IF_ERROR(Read());
    result.bytes = written_;
    result.write_rate = static_cast<double>(written_) / write_s_;
    result.read_rate = static_cast<double>(written_) / read_s_;
    return Status::Ok();
  }
  uint64_t bad_blocks() const { return bad_blocks_; }
  uint64_t first_bad() const { return first_bad_; }
  uint64_t written() const { return written_; }

 private:
  std::span<std::byte> Block(uint64_t i) const {
    return buffer_.span().subspan(i * kBlock, kBlock);
  }

  Status Write(uint64_t bytes) {
    const auto begin = steady_clock::now();
    while (written_ < bytes && (written_ == 0 || SecondsSince(begin) < options_.seconds)) {
      const uint64_t blocks = std::min(kInFlight, (bytes - written_) / kBlock);
      for (uint64_t i = 0; i < blocks; ++i) {
        Fill(Block(i), written_);
        HOLDFAST_RETURN_IF_ERROR(file_->QueueWrite(written_, Block(i)));
        written_ += kBlock;
      }
      HOLDFAST_RETURN_IF_ERROR(file_->Drain());
    }
    HOLDFAST_RETURN_IF_ERROR(file_->Sync());
    write_s_ = std::max(1e-9, SecondsSince(begin));
    return Status::Ok();
  }

  Status Read() {
    for (uint64_t offset = 0; offset < written_;) {
      const uint64_t blocks = std::min(kInFlight, (written_ - offset) / kBlock);
      const auto begin = steady_clock::now();
      for (uint64_t i = 0; i < blocks; ++i) {
        HOLDFAST_RETURN_IF_ERROR(file_->QueueRead(offset + i * kBlock, Block(i)));
      }
      HOLDFAST_RETURN_IF_ERROR(file_->Drain());
      read_s_ += SecondsSince(begin);
      for (uint64_t i = 0; i < blocks; ++i, offset += kBlock) {
        Fill(expected_.span(), offset);
        if (std::memcmp(expected_.data(), Block(i).data(), kBlock) == 0) continue;
        if (bad_blocks_++ == 0) first_bad_ = offset;
      }
    }
    read_s_ = std::max(1e-9, read_s_);
    return Status::Ok();
  }

  Directory& directory_;
  const DiskCheckOptions& options_;
  AlignedBuffer buffer_;
  AlignedBuffer expected_;
  std::unique_ptr<BlockFile> file_;
  uint64_t written_ = 0;
  double write_s_ = 0;
  double read_s_ = 0;
  uint64_t bad_blocks_ = 0;
  uint64_t first_bad_ = 0;
};

}  // namespace

CheckResult CheckDisk(Directory& directory, const DiskCheckOptions& options) {
  CheckResult result{.part = "disk " + directory.path()};
  const auto begin = steady_clock::now();
  DiskCheck check(directory, options);
  const Status status = check.Run(result);
  result.seconds = SecondsSince(begin);
  const bool may_not = status.code() == ErrorCode::kOutOfSpace ||
                       status.code() == ErrorCode::kPermissionDenied ||
                       status.code() == ErrorCode::kAlreadyExists;
  if (!status.ok()) {
    result.outcome = may_not ? Outcome::kNotTested : Outcome::kFailed;
    result.what = status.message();
  } else if (check.bad_blocks() > 0) {
    result.outcome = Outcome::kFailed;
    result.what =
        fmt::format("{} of {} blocks of 4 MiB differ from what was written, the first at byte {}",
                    check.bad_blocks(), check.written() / kBlock, check.first_bad());
  } else {
    result.outcome = Outcome::kPassed;
    result.what = fmt::format("{} MiB, {}", check.written() >> 20U, directory.Describe());
  }
  return result;
}

}  // namespace holdfast::selftest
