#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/fd.h"
#include "base/status.h"

namespace holdfast::agent {

/// A fully mapped memfd. Every page is allocated before use and the size is sealed, so no process
/// with the descriptor can cause a fault in the mapping. Unmapped and closed on destruction.
class MemoryFile {
 public:
  /// Creates a file of `bytes` bytes; `name` shows in /proc/<pid>/maps. ResourceExhausted, with the
  /// numbers, when the machine or a cgroup lacks the memory; nothing stays allocated, and the OOM
  /// killer does not act. The first `later` bytes are not allocated: they must not be used before
  /// Allocate().
  static Result<MemoryFile> Create(const std::string& name, uint64_t bytes, uint64_t later = 0);
  /// Maps an existing file. DataLoss when `fd` is not a memfd with a sealed size.
  static Result<MemoryFile> Adopt(UniqueFd fd);

  MemoryFile() = default;
  MemoryFile(MemoryFile&& other) noexcept
      : fd_(std::move(other.fd_)), memory_(std::exchange(other.memory_, {})) {}
  MemoryFile& operator=(MemoryFile&& other) noexcept;
  ~MemoryFile();

  /// Allocates [begin, end), where `begin` is a multiple of a huge page. Concurrent calls for
  /// different ranges are allowed. Errors as Create().
  Status Allocate(uint64_t begin, uint64_t end);

  int fd() const { return fd_.get(); }
  std::span<std::byte> memory() const { return memory_; }

 private:
  MemoryFile(UniqueFd fd, std::span<std::byte> memory) : fd_(std::move(fd)), memory_(memory) {}
  static Result<MemoryFile> Map(UniqueFd fd, uint64_t bytes);

  UniqueFd fd_;
  std::span<std::byte> memory_;
};

}  // namespace holdfast::agent
