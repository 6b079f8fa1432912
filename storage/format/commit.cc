#include "storage/format/commit.h"

#include <isa-l/crc64.h>

#include <bit>

namespace holdfast {

static_assert(std::endian::native == std::endian::little, "formats are little-endian in memory");

uint64_t CommitDigest(std::span<const uint64_t> digests) {
  const uint64_t world = digests.size();
  uint64_t crc = crc64_ecma_refl(0, reinterpret_cast<const unsigned char*>(&world), sizeof(world));
  if (!digests.empty()) {
    crc = crc64_ecma_refl(crc, reinterpret_cast<const unsigned char*>(digests.data()),
                          digests.size_bytes());
  }
  return crc == 0 ? 1 : crc;
}

}  // namespace holdfast
