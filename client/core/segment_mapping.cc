#include "client/core/segment_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/aligned_mapping.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace holdfast::client {
namespace {
Status CheckWelcome(const agent::WelcomeMessage& welcome, uint64_t slot_bytes,
                    uint64_t file_bytes) {
  auto refuse = [&](const std::string& why) {
    return InternalError("the agent offers an invalid segment: " + why);
  };
  if (welcome.slots == 0 || welcome.slots > agent::kSlotsMax) {
    return refuse(std::to_string(welcome.slots) + " slots");
  }
  if (welcome.control_bytes < sizeof(agent::SegmentControl)) {
    return refuse("a control block of " + std::to_string(welcome.control_bytes) + " bytes");
  }
  if (welcome.slot_bytes < slot_bytes) {
    return refuse("slots of " + std::to_string(welcome.slot_bytes) + " bytes where " +
                  std::to_string(slot_bytes) + " were requested");
  }
  uint64_t all = 0;
  if (__builtin_mul_overflow(welcome.slot_bytes, uint64_t{welcome.slots}, &all) ||
      __builtin_add_overflow(all, welcome.control_bytes, &all) || all > welcome.segment_bytes ||
      welcome.segment_bytes > file_bytes) {
    return refuse(std::to_string(welcome.slots) + " slots of " +
                  std::to_string(welcome.slot_bytes) + " bytes in a segment of " +
                  std::to_string(welcome.segment_bytes) + " bytes, in memory of " +
                  std::to_string(file_bytes) + " bytes");
  }
  return Status::Ok();
}
}  // namespace

SegmentMapping& SegmentMapping::operator=(SegmentMapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(control_bytes_, other.control_bytes_);
  std::swap(slot_bytes_, other.slot_bytes_);
  std::swap(slots_, other.slots_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}

SegmentMapping::~SegmentMapping() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

Result<SegmentMapping> SegmentMapping::Map(int fd, const agent::WelcomeMessage& welcome,
                                           uint64_t slot_bytes) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return Fail(ErrnoStatus(errno, "fstat of the segment"));
  HOLDFAST_RETURN_IF_ERROR(CheckWelcome(welcome, slot_bytes, static_cast<uint64_t>(info.st_size)));
  int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Fail(InternalError("the agent offers a segment that could shrink while it is mapped"));
  }
  HOLDFAST_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                            MapAligned(fd, welcome.segment_bytes));
  SegmentMapping mapping;
  mapping.base_ = memory.data();
  mapping.bytes_ = memory.size();
  mapping.control_bytes_ = welcome.control_bytes;
  mapping.slot_bytes_ = welcome.slot_bytes;
  mapping.slots_ = welcome.slots;
  mapping.device_ = info.st_dev;
  mapping.inode_ = info.st_ino;
  if (::madvise(memory.data(), memory.size(), MADV_DONTFORK) != 0) {
    return Fail(ErrnoStatus(errno, "madvise(MADV_DONTFORK)"));
  }
  return mapping;
}

uint64_t SegmentMapping::Populate(uint64_t from) const {
  constexpr uint64_t kPart = 32ULL << 20;
  if (from >= bytes_) return bytes_;
  const uint64_t part = std::min(kPart, bytes_ - from);
  return ::madvise(base_ + from, part, MADV_POPULATE_WRITE) == 0 ? from + part : bytes_;
}

bool SegmentMapping::IsSame(int fd) const {
  struct stat info {};
  return base_ != nullptr && ::fstat(fd, &info) == 0 && info.st_dev == device_ &&
         info.st_ino == inode_;
}

}  // namespace holdfast::client
