#include "agent/arena/memory_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <optional>

#include "base/config.h"

namespace holdfast::agent {
namespace {
// Memory is allocated in steps. Each step first checks the available memory and leaves kLeaveBytes
// to other processes.
constexpr uint64_t kStepBytes = 256ULL << 20;
constexpr uint64_t kLeaveBytes = 64ULL << 20;
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr uint64_t kHugeBytes = 2ULL << 20;
constexpr uint64_t kPageBytes = 4096;
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

/// Returns the number after `key` at the start of a line, e.g. "MemAvailable:" in /proc/meminfo.
/// With an empty `key`, the file contains only the number.
std::optional<uint64_t> NumberInFile(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  uint64_t number = 0;
  if (key.empty()) return file >> number ? std::optional(number) : std::nullopt;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + " ", 0) != 0 && line.rfind(key + "\t", 0) != 0) continue;
    number = std::strtoull(line.c_str() + key.size(), nullptr, 10);
    return number;
  }
  return std::nullopt;
}

struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // key in memory.stat
};

/// Lowers `headroom` to the memory left in one cgroup, if the cgroup has a limit.
void Narrow(const std::string& folder, const std::string& name, const CgroupFiles& files,
            MemoryHeadroom& headroom) {
  auto limit = NumberInFile(folder + files.limit, "");
  auto usage = NumberInFile(folder + files.usage, "");
  if (!limit || !usage) return;
  uint64_t reclaimable = NumberInFile(folder + "memory.stat", files.reclaimable).value_or(0);
  uint64_t used = *usage - std::min(*usage, reclaimable);
  uint64_t left = *limit - std::min(*limit, used);
  if (left < headroom.bytes) headroom = {.bytes = left, .limit = "memory limit of cgroup " + name};
}

/// Lowers `headroom` to the memory left in a cgroup and in its ancestors.
void NarrowUpwards(const std::string& mount, std::string name, const CgroupFiles& files,
                   MemoryHeadroom& headroom) {
  while (!name.empty() && name.back() == '/') name.pop_back();
  for (;;) {
    Narrow(mount + name + "/", name.empty() ? "/" : name, files, headroom);
    if (name.empty()) return;
    name.resize(name.rfind('/') == std::string::npos ? 0 : name.rfind('/'));
  }
}

Status CheckHeadroom(uint64_t left_to_take, uint64_t bytes) {
  MemoryHeadroom headroom = AvailableMemory();
  if (headroom.bytes >= left_to_take && headroom.bytes - left_to_take >= kLeaveBytes) {
    return Status::Ok();
  }
  return ResourceExhaustedError(fmt::format(
      "a segment of {} does not fit: {} are available ({}), of which {} stay free for other "
      "processes. Free memory, or save less per rank",
      FormatBytes(bytes), FormatBytes(headroom.bytes), headroom.limit, FormatBytes(kLeaveBytes)));
}

Status FallocateError(uint64_t done, uint64_t bytes) {
  if (errno != ENOMEM && errno != ENOSPC) {
    return ErrnoStatus(errno, fmt::format("allocate {} of shared memory", FormatBytes(bytes)));
  }
  return ResourceExhaustedError(
      fmt::format("the kernel allocated only {} of the {} for a segment: {}", FormatBytes(done),
                  FormatBytes(bytes),
                  errno == ENOMEM ? "out of memory" : "the shared memory file system is full"));
}

int Fallocate(int fd, uint64_t begin, uint64_t bytes) {
  int result = 0;
  do {
    result = ::fallocate(fd, 0, static_cast<off_t>(begin), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result;
}

/// Turns the full 2 MiB extents of [begin, end) into huge pages, as far as the kernel can. Direct
/// I/O then needs 1/512 of the segments per request, and pinning becomes cheaper by the same
/// factor. The first page of each extent is fallocated, so that a lack of memory is an error and
/// never a fault.
void TryHugePages(int fd, std::span<std::byte> memory, uint64_t begin, uint64_t end) {
  for (uint64_t at = begin; at + kHugeBytes <= end; at += kHugeBytes) {
    if (Fallocate(fd, at, kPageBytes) != 0) return;
    if (::madvise(memory.data() + at, kHugeBytes, MADV_COLLAPSE) != 0) return;
  }
}

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

MemoryHeadroom AvailableMemory() {
  MemoryHeadroom headroom{.bytes = std::numeric_limits<uint64_t>::max(), .limit = "machine"};
  if (auto kib = NumberInFile("/proc/meminfo", "MemAvailable:")) {
    headroom = {.bytes = *kib << 10, .limit = "free memory of this machine"};
  }
  constexpr CgroupFiles kV1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                            "total_inactive_file"};
  constexpr CgroupFiles kV2{"memory.max", "memory.current", "inactive_file"};
  std::ifstream cgroups("/proc/self/cgroup");
  for (std::string line; std::getline(cgroups, line);) {
    size_t first = line.find(':');
    size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string name = line.substr(second + 1);
    if (controllers == ",,") NarrowUpwards("/sys/fs/cgroup", name, kV2, headroom);
    if (controllers.find(",memory,") != std::string::npos) {
      NarrowUpwards("/sys/fs/cgroup/memory", name, kV1, headroom);
    }
  }
  return headroom;
}

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
  const uint64_t bytes = end - begin;
  for (uint64_t done = 0; done < bytes;) {
    HOLDFAST_RETURN_IF_ERROR(CheckHeadroom(bytes - done, bytes));
    uint64_t step = std::min<uint64_t>(kStepBytes, bytes - done);
    TryHugePages(fd(), memory_, begin + done, begin + done + step);
    if (Fallocate(fd(), begin + done, step) != 0) return FallocateError(done, bytes);
    done += step;
  }
  return Status::Ok();
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
  // The mapping begins at a multiple of a huge page: reserve one huge page more and trim.
  uint64_t reserved = bytes + kHugeBytes;
  void* reservation = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* address = MAP_FAILED;
  if (reservation != MAP_FAILED) {
    auto base = reinterpret_cast<uintptr_t>(reservation);
    uintptr_t aligned = (base + kHugeBytes - 1) / kHugeBytes * kHugeBytes;
    uintptr_t end = (aligned + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    if (aligned > base) ::munmap(reservation, aligned - base);
    ::munmap(reinterpret_cast<void*>(end), base + reserved - end);
    address = ::mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_FIXED, fd.get(), 0);
    if (address == MAP_FAILED) ::munmap(reinterpret_cast<void*>(aligned), end - aligned);
  }
  if (address == MAP_FAILED) {
    return Fail(ErrnoStatus(errno, fmt::format("map {} of shared memory", FormatBytes(bytes))));
  }
  // Gigabytes of weights do not belong in a core dump. A failure of this call is harmless.
  ::madvise(address, bytes, MADV_DONTDUMP);
  return MemoryFile(std::move(fd), {static_cast<std::byte*>(address), bytes});
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
