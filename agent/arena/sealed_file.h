#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/fd.h"
#include "base/status.h"

namespace holdfast::agent {

/// Bytes in a memfd that no process can change any more, so that many processes can map and check
/// them once. Mapped read-only; unmapped and closed on destruction.
class SealedFile {
 public:
  /// `name` shows in /proc/<pid>/maps. ResourceExhausted when the machine lacks the memory.
  static Result<SealedFile> Create(const std::string& name, std::span<const std::byte> bytes);

  SealedFile() = default;
  SealedFile(SealedFile&& other) noexcept
      : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}
  SealedFile& operator=(SealedFile&& other) noexcept;
  ~SealedFile();

  int fd() const { return fd_.get(); }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  UniqueFd fd_;
  std::span<const std::byte> bytes_;
};

}  // namespace holdfast::agent
