#include "storage/format/checksum.h"

#include <isa-l/crc.h>
#include <isa-l/crc64.h>

#include <algorithm>
#include <bit>

namespace holdfast {

static_assert(std::endian::native == std::endian::little, "formats are little-endian in memory");

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes) {
  // ISA-L takes an int length, and leaves inverting the CRC before and after to its caller.
  constexpr size_t kCallBytesMax = size_t{1} << 30;
  uint32_t state = ~crc;
  while (!bytes.empty()) {
    size_t count = std::min(bytes.size(), kCallBytesMax);
    // ISA-L only reads the buffer, but its parameter is not const.
    auto* buffer = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    state = crc32_iscsi(buffer, static_cast<int>(count), state);
    bytes = bytes.subspan(count);
  }
  return ~state;
}

uint32_t Crc32c(std::span<const std::byte> bytes) { return ExtendCrc32c(0, bytes); }

std::vector<uint32_t> ChunkCrcs(std::span<const std::byte> image) {
  std::vector<uint32_t> crcs;
  crcs.reserve(ChunkCount(image.size()));
  for (size_t begin = 0; begin < image.size(); begin += kChunkBytes) {
    crcs.push_back(
        Crc32c(image.subspan(begin, std::min<size_t>(kChunkBytes, image.size() - begin))));
  }
  return crcs;
}

uint64_t DigestOf(uint64_t image_bytes, std::span<const uint32_t> chunk_crcs) {
  uint64_t crc =
      crc64_ecma_refl(0, reinterpret_cast<const unsigned char*>(&image_bytes), sizeof(image_bytes));
  if (chunk_crcs.empty()) return crc;
  return crc64_ecma_refl(crc, reinterpret_cast<const unsigned char*>(chunk_crcs.data()),
                         chunk_crcs.size_bytes());
}

uint64_t FirstBadChunk(std::span<const std::byte> image, std::span<const uint32_t> chunk_crcs) {
  const uint64_t count = ChunkCount(image.size());
  for (uint64_t i = 0; i < count; ++i) {
    if (i >= chunk_crcs.size()) return i;
    size_t begin = i * kChunkBytes;
    size_t bytes = std::min<size_t>(kChunkBytes, image.size() - begin);
    if (Crc32c(image.subspan(begin, bytes)) != chunk_crcs[i]) return i;
  }
  return chunk_crcs.size() > count ? count : kNoChunk;
}

}  // namespace holdfast
