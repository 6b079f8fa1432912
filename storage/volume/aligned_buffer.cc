#include "storage/volume/aligned_buffer.h"

#include <cstring>

#include "storage/io/block_file.h"

namespace holdfast {

Result<AlignedBuffer> AlignedBuffer::Allocate(uint64_t bytes) {
  AlignedBuffer buffer;
  buffer.bytes_ = RoundUpTo(bytes, kBlockBytes);
  if (buffer.bytes_ == 0) return buffer;
  buffer.memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, buffer.bytes_)));
  if (!buffer.memory_) {
    return Fail(ResourceExhaustedError("not enough memory for a buffer of " +
                                       std::to_string(buffer.bytes_) + " bytes"));
  }
  std::memset(buffer.memory_.get(), 0, buffer.bytes_);
  return buffer;
}

}  // namespace holdfast
