#pragma once

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "agent/api/segment_layout.h"
#include "base/status.h"
#include "storage/io/block_file.h"

namespace holdfast::agent {

/// Address space for an image; only the pages in use take memory.
class SparseImage {
 public:
  static Result<SparseImage> Make(uint64_t bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return Fail(
          ErrnoStatus(errno, fmt::format("map {} bytes of address space for a shard", bytes)));
    }
    return SparseImage(std::span(static_cast<std::byte*>(memory), bytes));
  }
  ~SparseImage() {
    if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  }
  SparseImage(SparseImage&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  SparseImage& operator=(SparseImage&&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  /// Frees the memory of the pages that are completely inside the range.
  void Drop(uint64_t begin, uint64_t end) {
    begin = RoundUp(begin, kBlockBytes);
    end -= std::min(end, end % kBlockBytes);
    if (begin < end) ::madvise(bytes_.data() + begin, end - begin, MADV_DONTNEED);
  }

 private:
  explicit SparseImage(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace holdfast::agent
