#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "base/status.h"

namespace holdfast {

constexpr uint64_t RoundDownTo(uint64_t value, uint64_t multiple) {
  return value / multiple * multiple;
}
constexpr uint64_t RoundUpTo(uint64_t value, uint64_t multiple) {
  return RoundDownTo(value + multiple - 1, multiple);
}

/// Memory for direct I/O. Its address and its length are multiples of kBlockBytes.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  /// Allocates `bytes`, rounded up to a multiple of kBlockBytes and zeroed. ResourceExhausted when
  /// there is not enough memory.
  static Result<AlignedBuffer> Allocate(uint64_t bytes);

  std::byte* data() const { return memory_.get(); }
  uint64_t size() const { return bytes_; }
  std::span<std::byte> span() const { return {memory_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  uint64_t bytes_ = 0;
};

}  // namespace holdfast
