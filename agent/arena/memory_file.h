#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "storage/base/fd.h"
#include "storage/base/status.h"

namespace holdfast::agent {

/// A memfd, mapped whole: every page allocated before it is touched, its size sealed. Nobody who
/// gets the descriptor can make touching the mapping fail. Unmapped and closed on destruction.
class MemoryFile {
 public:
  /// `name` shows in /proc/<pid>/maps. ResourceExhausted, with the numbers, when the machine or a
  /// cgroup has not the memory; it then keeps nothing and the OOM killer was not asked.
  /// The first `later` bytes are not allocated yet: nobody touches them before Allocate() has.
  static Result<MemoryFile> Create(const std::string& name, uint64_t bytes, uint64_t later = 0);
  /// DataLoss when `fd` is not such a file.
  static Result<MemoryFile> Adopt(UniqueFd fd);

  MemoryFile() = default;
  MemoryFile(MemoryFile&& other) noexcept
      : fd_(std::move(other.fd_)), memory_(std::exchange(other.memory_, {})) {}
  MemoryFile& operator=(MemoryFile&& other) noexcept;
  ~MemoryFile();

  /// Allocates [begin, end), which begins at a huge page; for several ranges at once, too. Errors
  /// as Create().
  Status Allocate(uint64_t begin, uint64_t end);

  int fd() const { return fd_.get(); }
  std::span<std::byte> memory() const { return memory_; }

 private:
  MemoryFile(UniqueFd fd, std::span<std::byte> memory) : fd_(std::move(fd)), memory_(memory) {}
  static Result<MemoryFile> Map(UniqueFd fd, uint64_t bytes);

  UniqueFd fd_;
  std::span<std::byte> memory_;
};

/// How much memory may still be taken and what sets that limit.
struct MemoryRoom {
  uint64_t bytes = 0;
  std::string limit;  // "free memory of this machine", "memory limit of cgroup /x"
};
/// The tightest of MemAvailable and the limits of this process's cgroups (v1 and v2). What cannot
/// be read does not limit.
MemoryRoom AvailableMemory();

}  // namespace holdfast::agent
