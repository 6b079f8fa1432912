#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "storage/format/seal.h"
#include "tests/fuzz/require.h"

namespace holdfast {
namespace {

void DecodeOne(std::span<const std::byte> bytes) {
  Result<ShardSeal> seal = DecodeSeal(bytes);
  if (!seal) {
    FUZZ_REQUIRE(!seal.error().message().empty());
    FUZZ_REQUIRE(seal.error().code() == ErrorCode::kDataLoss ||
                 seal.error().code() == ErrorCode::kUnsupported);
    return;
  }
  // Each seal has exactly one encoding, so an accepted record contains nothing else.
  const std::string again = EncodeSeal(*seal);
  FUZZ_REQUIRE(std::ranges::equal(bytes, std::as_bytes(std::span(again))));
  FUZZ_REQUIRE(seal->chunk_crcs.size() == ChunkCount(seal->image_bytes));
  FUZZ_REQUIRE(RankInWorld(seal->identity.rank, seal->identity.world));
  uint64_t reached = seal->image_header.size();
  for (const SealPart& part : seal->parts) {
    FUZZ_REQUIRE(part.image_begin == reached && part.image_end >= reached);
    FUZZ_REQUIRE(part.file_bytes - part.data_offset == part.image_end - part.image_begin);
    reached = part.image_end;
  }
  FUZZ_REQUIRE(seal->parts.empty() || reached == seal->image_bytes);
}

}  // namespace
}  // namespace holdfast

/// Decodes the input unchanged and with a correct checksum, since a wrong one hides the checks that
/// follow.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  std::string record(reinterpret_cast<const char*>(data), size);
  DecodeOne(std::as_bytes(std::span(record)));
  if (size >= sizeof(uint32_t)) record.resize(size - sizeof(uint32_t));
  const uint32_t crc = Crc32c(std::as_bytes(std::span(record)));
  record.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
  DecodeOne(std::as_bytes(std::span(record)));
  return 0;
}
