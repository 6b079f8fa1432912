#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "storage/format/seal.h"

namespace holdfast::bench {

struct Unmap {
  uint64_t bytes = 0;
  void operator()(std::byte* memory) const;
};

/// The pages of memory. A slot of an agent has huge pages as far as the kernel can make them.
enum class Pages { kAsASlot, kSmall };

/// A shard's image in memory, as in a sealed slot: one large F32 tensor of pseudo-random bytes.
class SealedImage {
 public:
  /// Makes an image of about `bytes` in total: job "bench", incarnation 1, step 0.
  static Result<SealedImage> Make(uint32_t rank, uint32_t world, uint64_t bytes,
                                  Pages pages = Pages::kAsASlot);
  /// Turns the image into that of another step: a new header and a new checksum of the first chunk.
  Status Restamp(uint64_t step);

  std::span<const std::byte> bytes() const { return {memory_.get(), seal_.image_bytes}; }
  /// Returns the complete mapping, a multiple of 2 MiB.
  std::span<std::byte> memory() { return {memory_.get(), capacity_}; }
  const ShardSeal& seal() const { return seal_; }

 private:
  std::unique_ptr<std::byte, Unmap> memory_;
  uint64_t capacity_ = 0;
  uint64_t elements_ = 0;
  ShardSeal seal_;
};

}  // namespace holdfast::bench
