#include "agent/arena/memory_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "agent/arena/allocation.h"
#include "agent/arena/headroom.h"
#include "base/aligned_mapping.h"
#include "base/config.h"

namespace holdfast::agent {
namespace {
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Status SetSize(int fd, uint64_t bytes) {
  rlimit file_limit{};
  // Beyond RLIMIT_FSIZE the kernel sends SIGXFSZ, which would end the agent.
  if (::getrlimit(RLIMIT_FSIZE, &file_limit) == 0 && file_limit.rlim_cur < bytes) {
    return ResourceExhaustedError(
        fmt::format("a segment of {} is over the file size limit of {} (ulimit -f): raise it",
                    FormatBytes(bytes), FormatBytes(file_limit.rlim_cur)));
  }
  if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0) return Status::Ok();
  return ErrnoStatus(errno, fmt::format("set the size of shared memory to {}", FormatBytes(bytes)));
}
}  // namespace

Result<MemoryFile> MemoryFile::Create(const std::string& name, uint64_t bytes, uint64_t later) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Fail(ErrnoStatus(errno, "memfd_create"));
  HOLDFAST_RETURN_IF_ERROR(CheckHeadroom(bytes - later, bytes));
  HOLDFAST_RETURN_IF_ERROR(SetSize(fd.get(), bytes));
  HOLDFAST_ASSIGN_OR_RETURN(MemoryFile file, Map(std::move(fd), bytes));
  HOLDFAST_RETURN_IF_ERROR(file.Allocate(later, bytes));
  if (::fcntl(file.fd(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return Fail(ErrnoStatus(errno, "seal a memfd"));
  }
  return file;
}

Status MemoryFile::Allocate(uint64_t begin, uint64_t end) {
  return Allocation(fd(), memory_, begin, end).Run();
}

Result<MemoryFile> MemoryFile::Adopt(UniqueFd fd) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return Fail(ErrnoStatus(errno, "fstat"));
  int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (!S_ISREG(info.st_mode) || seals < 0 || (seals & kSizeSeals) != kSizeSeals ||
      info.st_size <= 0) {
    return Fail(DataLossError("a kept descriptor is not a memfd with a sealed size"));
  }
  return Map(std::move(fd), static_cast<uint64_t>(info.st_size));
}

Result<MemoryFile> MemoryFile::Map(UniqueFd fd, uint64_t bytes) {
  HOLDFAST_ASSIGN_OR_RETURN(const std::span<std::byte> memory, MapAligned(fd.get(), bytes));
  // Gigabytes of weights do not belong in a core dump. A failure of this call is harmless.
  ::madvise(memory.data(), memory.size(), MADV_DONTDUMP);
  return MemoryFile(std::move(fd), memory);
}

MemoryFile& MemoryFile::operator=(MemoryFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(memory_, other.memory_);
  return *this;
}

MemoryFile::~MemoryFile() {
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
}

}  // namespace holdfast::agent
