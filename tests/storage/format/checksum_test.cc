#include "storage/format/checksum.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/storage/format/test_images.h"

namespace holdfast {
namespace {

/// Computes bit by bit from the polynomial's definition: an oracle independent of the library.
uint32_t SlowCrc32c(std::string_view text) {
  uint32_t crc = ~0U;
  for (char c : text) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0);
  }
  return ~crc;
}

TEST(Crc32cTest, KnownValues) {
  EXPECT_EQ(Crc32c({}), 0U);
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xe3069283U);
  // RFC 3720, B.4.
  EXPECT_EQ(Crc32c(Bytes(std::string(32, '\0'))), 0x8a9136aaU);
  EXPECT_EQ(Crc32c(Bytes(std::string(32, '\xff'))), 0x62a8ab43U);
}

TEST(Crc32cTest, MatchesTheDefinitionAtEveryLengthAndAlignment) {
  Random random(1);
  const std::string bytes = RandomBytes(random, 700);
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t count = 0; begin + count <= bytes.size(); count += 1 + count / 40) {
      std::string_view piece = std::string_view(bytes).substr(begin, count);
      ASSERT_EQ(Crc32c(Bytes(piece)), SlowCrc32c(piece)) << begin << "+" << count;
    }
  }
}

/// Longer images are computed in several calls of the library.
TEST(Crc32cTest, MatchesTheDefinitionOverPagesAndChunks) {
  Random random(4);
  const std::string bytes = RandomBytes(random, 2 * kChunkBytes + 5);
  for (size_t count : {size_t{4095}, size_t{4096}, size_t{4097}, size_t{12'287}, size_t{12'289},
                       size_t{kChunkBytes}, size_t{kChunkBytes} + 1, bytes.size()}) {
    std::string_view piece = std::string_view(bytes).substr(0, count);
    ASSERT_EQ(Crc32c(Bytes(piece)), SlowCrc32c(piece)) << count;
  }
}

TEST(Crc32cTest, ExtendsAnywhere) {
  Random random(2);
  const std::string bytes = RandomBytes(random, 300);
  const uint32_t whole = Crc32c(Bytes(bytes));
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    std::string_view text = bytes;
    uint32_t head = Crc32c(Bytes(text.substr(0, cut)));
    ASSERT_EQ(ExtendCrc32c(head, Bytes(text.substr(cut))), whole) << cut;
  }
}

TEST(ChunksTest, CountsAndCoversEveryByte) {
  EXPECT_EQ(ChunkCount(0), 0U);
  EXPECT_EQ(ChunkCount(1), 1U);
  EXPECT_EQ(ChunkCount(kChunkBytes), 1U);
  EXPECT_EQ(ChunkCount(kChunkBytes + 1), 2U);

  Random random(3);
  std::string image = RandomBytes(random, 2 * kChunkBytes + 5);
  std::vector<uint32_t> crcs = ChunkCrcs(Bytes(image));
  ASSERT_EQ(crcs.size(), 3U);
  EXPECT_EQ(crcs[2], SlowCrc32c(std::string_view(image).substr(2 * kChunkBytes)));
  EXPECT_EQ(FirstBadChunk(Bytes(image), crcs), kNoChunk);
  for (size_t position : {size_t{0}, size_t{kChunkBytes - 1}, size_t{kChunkBytes},
                          size_t{2 * kChunkBytes - 1}, image.size() - 1}) {
    image[position] = static_cast<char>(image[position] ^ 0x10);
    EXPECT_EQ(FirstBadChunk(Bytes(image), crcs), position / kChunkBytes);
    image[position] = static_cast<char>(image[position] ^ 0x10);
  }
}

TEST(ChunksTest, SwappedChunksAreFound) {
  Random random(4);
  std::string image = RandomBytes(random, 3 * kChunkBytes);
  std::vector<uint32_t> crcs = ChunkCrcs(Bytes(image));
  std::string swapped = image.substr(0, kChunkBytes) + image.substr(2 * kChunkBytes) +
                        image.substr(kChunkBytes, kChunkBytes);
  EXPECT_EQ(FirstBadChunk(Bytes(swapped), crcs), 1U);
  std::vector<uint32_t> other = ChunkCrcs(Bytes(swapped));
  EXPECT_NE(DigestOf(image.size(), crcs), DigestOf(image.size(), other));
}

TEST(ChunksTest, ATableOfTheWrongSizeIsAMismatch) {
  const std::string image(kChunkBytes + 1, 'x');
  std::vector<uint32_t> crcs = ChunkCrcs(Bytes(image));
  EXPECT_EQ(FirstBadChunk(Bytes(image), std::span(crcs).first(1)), 1U);
  EXPECT_EQ(FirstBadChunk(Bytes(image), {}), 0U);
  crcs.push_back(0);
  EXPECT_EQ(FirstBadChunk(Bytes(image), crcs), 2U);
  EXPECT_EQ(FirstBadChunk({}, {}), kNoChunk);
}

TEST(DigestTest, DependsOnLengthContentAndOrder) {
  const std::vector<uint32_t> a = {1, 2};
  const std::vector<uint32_t> b = {2, 1};
  EXPECT_NE(DigestOf(2 * kChunkBytes, a), DigestOf(2 * kChunkBytes - 1, a));
  EXPECT_NE(DigestOf(2 * kChunkBytes, a), DigestOf(2 * kChunkBytes, b));
  EXPECT_NE(DigestOf(0, {}), DigestOf(1, std::vector<uint32_t>{0}));
  // A golden value from an independent computation: nodes with different builds compare digests.
  EXPECT_EQ(DigestOf(2 * kChunkBytes, a), 0x212c95aed145923eU);
}

TEST(DTypeTest, NamesAndNumbersRoundTrip) {
  EXPECT_EQ(AllDTypes().size(), 16U);
  for (DType dtype : AllDTypes()) {
    EXPECT_EQ(ParseDType(NameOf(dtype)).value(), dtype);
    EXPECT_EQ(DTypeFromNumber(static_cast<uint32_t>(dtype)).value(), dtype);
    EXPECT_GE(SizeOf(dtype), 1U);
  }
  EXPECT_EQ(SizeOf(DType::kBF16), 2U);
  EXPECT_EQ(SizeOf(DType::kC64), 8U);
  EXPECT_EQ(NameOf(DType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(NameOf(DType::kBool), "BOOL");
}

TEST(DTypeTest, RefusesUnknownNamesAndNumbers) {
  EXPECT_EQ(ParseDType("f32").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ParseDType("").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ParseDType("F4").error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(DTypeFromNumber(16).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(DTypeFromNumber(~0U).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace holdfast
