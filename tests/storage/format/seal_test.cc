#include "storage/format/seal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/storage/format/test_images.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;

ErrorCode CodeOf(const Result<ShardSeal>& seal) {
  return seal ? ErrorCode::kOk : seal.error().code();
}

ShardSeal MemorySeal() {
  ShardSeal seal;
  seal.identity = Identity("gpt-2");
  seal.image_bytes = 2 * kChunkBytes + 17;
  seal.chunk_crcs = {0x01020304, 0xa0b0c0d0, 7};
  seal.wall_nanos = 1'700'000'000'123'456'789;
  return seal;
}

ShardSeal DiskSeal() {
  ShardSeal seal = MemorySeal();
  seal.parts = {{0, seal.image_bytes, 0, seal.image_bytes, 0}};
  return seal;
}

ShardSeal PartedSeal() {
  ShardSeal seal = MemorySeal();
  seal.image_header = std::string(4096, 'h');
  seal.parts = {{4096, 1'000'004, 8192, 8192 + 995'908, 1},
                {1'000'004, seal.image_bytes, 4676, 4676 + seal.image_bytes - 1'000'004, 2}};
  return seal;
}

/// Returns `count` parts, each of one byte except the last.
std::vector<SealPart> PartsOf(const ShardSeal& seal, uint32_t count) {
  std::vector<SealPart> parts;
  uint64_t begin = seal.image_header.size();
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t end = i + 1 == count ? seal.image_bytes : begin + 1;
    parts.push_back({begin, end, 100, 100 + end - begin, i});
    begin = end;
  }
  return parts;
}

/// Returns the record with a corrected checksum.
std::string Resealed(std::string record) {
  record.resize(record.size() - 4);
  uint32_t crc = Crc32c(Bytes(record));
  record.append(reinterpret_cast<const char*>(&crc), 4);
  return record;
}

TEST(SealTest, RoundTrips) {
  ShardSeal empty;
  empty.identity = Identity("e", 1, 0, 0, 1);
  ShardSeal empty_on_disk = empty;
  empty_on_disk.parts = {{0, 0, 0, 0, 0}};
  ShardSeal negative = MemorySeal();
  negative.wall_nanos = -5;
  ShardSeal many = PartedSeal();
  many.parts = PartsOf(many, kPartsMax);
  for (const ShardSeal& seal :
       {MemorySeal(), DiskSeal(), PartedSeal(), many, empty, empty_on_disk, negative}) {
    Result<ShardSeal> decoded = DecodeSeal(Bytes(EncodeSeal(seal)));
    ASSERT_TRUE(decoded) << decoded.error().ToString();
    EXPECT_EQ(*decoded, seal);
    EXPECT_EQ(decoded->digest(), DigestOf(seal.image_bytes, seal.chunk_crcs));
  }
}

TEST(SealTest, GoldenBytes) {
  ShardSeal seal = MemorySeal();
  seal.image_bytes = 5000;
  seal.chunk_crcs = {0x01020304};
  seal.image_header = "HDR!";
  seal.parts = {{4, 100, 4100, 4196, 0x11223344}, {100, 5000, 4196, 9096, 0x55667788}};
  const std::string expected(
      "HFSEAL\r\n"
      "\x01\0\0\0"
      "\x05\0\0\0gpt-2"
      "\x03\0\0\0\0\0\0\0"
      "\x78\0\0\0\0\0\0\0"
      "\x01\0\0\0"
      "\x04\0\0\0"
      "\x15\xcd\x85\x3d\xfe\x9c\x97\x17"
      "\x88\x13\0\0\0\0\0\0"
      "\x02\0\0\0"
      "\x04\0\0\0\0\0\0\0\x64\0\0\0\0\0\0\0\x04\x10\0\0\0\0\0\0\x64\x10\0\0\0\0\0\0\x44\x33\x22\x11"
      "\x64\0\0\0\0\0\0\0\x88\x13\0\0\0\0\0\0\x64\x10\0\0\0\0\0\0\x88\x23\0\0\0\0\0\0\x88\x77\x66"
      "\x55"
      "\x04\0\0\0\0\0\0\0HDR!"
      "\x01\0\0\0\0\0\0\0\x04\x03\x02\x01",
      8 + 4 + 9 + 8 + 8 + 4 + 4 + 8 + 8 + 4 + 36 + 36 + 12 + 12);
  std::string record = EncodeSeal(seal);
  ASSERT_EQ(record.size(), expected.size() + 4);
  EXPECT_EQ(record.substr(0, expected.size()), expected);
  EXPECT_EQ(record.substr(expected.size()), "b\xd6\x9cy");
  EXPECT_EQ(DecodeSeal(Bytes(record)).value(), seal);
}

TEST(SealTest, EveryFlippedBitIsRefused) {
  std::string record = EncodeSeal(PartedSeal());
  for (size_t i = 0; i < record.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      record[i] = static_cast<char>(record[i] ^ (1 << bit));
      ASSERT_EQ(CodeOf(DecodeSeal(Bytes(record))), ErrorCode::kDataLoss) << i << " " << bit;
      record[i] = static_cast<char>(record[i] ^ (1 << bit));
    }
  }
  EXPECT_TRUE(DecodeSeal(Bytes(record)));
}

TEST(SealTest, EveryLengthIsRefused) {
  const std::string record = EncodeSeal(PartedSeal());
  for (size_t bytes = 0; bytes < record.size(); ++bytes) {
    ASSERT_EQ(CodeOf(DecodeSeal(Bytes(record.substr(0, bytes)))), ErrorCode::kDataLoss) << bytes;
    // Even if the rest has a valid checksum.
    if (bytes >= 8 + 4 + 4) {
      ASSERT_EQ(CodeOf(DecodeSeal(Bytes(Resealed(record.substr(0, bytes))))), ErrorCode::kDataLoss)
          << bytes;
    }
  }
  EXPECT_EQ(CodeOf(DecodeSeal(Bytes(record + std::string(4, '\0')))), ErrorCode::kDataLoss);
  EXPECT_EQ(CodeOf(DecodeSeal(Bytes(Resealed(record + std::string(4, '\0'))))),
            ErrorCode::kDataLoss);
}

TEST(SealTest, ForgedCountsAreCheckedBeforeUse) {
  const std::string record = EncodeSeal(MemorySeal());
  // Job bytes, parts, header bytes, chunks and image bytes at their offsets after "gpt-2".
  const size_t job_at = 12;
  const size_t body_at = 16 + 5;
  const size_t parts_at = body_at + 8 + 8 + 4 + 4 + 8 + 8;
  for (size_t at : {job_at, parts_at}) {
    for (uint32_t count : {1U, 64U, 65U, 0x7fffffffU, ~0U}) {
      std::string forged = record;
      std::memcpy(forged.data() + at, &count, 4);
      EXPECT_EQ(CodeOf(DecodeSeal(Bytes(Resealed(forged)))), ErrorCode::kDataLoss) << at;
    }
  }
  for (size_t at : {parts_at - 8, parts_at + 4, parts_at + 12}) {
    for (uint64_t count : {uint64_t{1}, uint64_t{1} << 32, uint64_t{1} << 61, uint64_t{1} << 62,
                           uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - kChunkBytes}) {
      std::string forged = record;
      std::memcpy(forged.data() + at, &count, 8);
      EXPECT_EQ(CodeOf(DecodeSeal(Bytes(Resealed(forged)))), ErrorCode::kDataLoss) << at;
    }
  }
}

TEST(SealTest, InvalidContentsAreRefused) {
  using Change = std::function<void(ShardSeal&)>;
  const std::vector<Change> changes = {
      [](ShardSeal& s) { s.identity.job = ""; },
      [](ShardSeal& s) { s.identity.job = "../x"; },
      [](ShardSeal& s) { s.identity.world = 0; },
      [](ShardSeal& s) { s.identity.world = kWorldMax + 1; },
      [](ShardSeal& s) { s.identity.rank.value = s.identity.world; },
      [](ShardSeal& s) { s.chunk_crcs.pop_back(); },
      [](ShardSeal& s) { s.chunk_crcs.push_back(1); },
      [](ShardSeal& s) { s.image_bytes = 0; },
      [](ShardSeal& s) { s.image_header.clear(); },
      [](ShardSeal& s) { s.image_header.pop_back(); },
      [](ShardSeal& s) { s.parts.clear(); },
      [](ShardSeal& s) { s.parts.pop_back(); },
      [](ShardSeal& s) { s.parts.erase(s.parts.begin()); },
      [](ShardSeal& s) { std::swap(s.parts[0], s.parts[1]); },
      [](ShardSeal& s) { s.parts[0].image_begin = 0; },
      [](ShardSeal& s) { ++s.parts[1].image_begin; },
      [](ShardSeal& s) { --s.parts[1].image_end; },
      [](ShardSeal& s) { ++s.parts[1].image_end; },
      [](ShardSeal& s) { ++s.parts[0].file_bytes; },
      [](ShardSeal& s) { ++s.parts[0].data_offset; },
      [](ShardSeal& s) { s.parts[1].data_offset = ~uint64_t{0}; },
      [](ShardSeal& s) {
        --s.parts[1].image_end;
        --s.parts[1].file_bytes;
      },
      [](ShardSeal& s) {
        s.parts.push_back({s.image_bytes, s.image_bytes, 7, 7, 0});
      },
      [](ShardSeal& s) { s.parts = PartsOf(s, kPartsMax + 1); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    ShardSeal seal = PartedSeal();
    changes[i](seal);
    EXPECT_EQ(CodeOf(DecodeSeal(Bytes(EncodeSeal(seal)))), ErrorCode::kDataLoss) << i;
  }
  ShardSeal single = DiskSeal();
  single.image_header = "x";
  EXPECT_EQ(CodeOf(DecodeSeal(Bytes(EncodeSeal(single)))), ErrorCode::kDataLoss);
}

TEST(SealTest, ANewerFormatIsUnsupportedAndFormatZeroIsDamage) {
  std::string record = EncodeSeal(MemorySeal());
  record[8] = 3;
  Result<ShardSeal> newer = DecodeSeal(Bytes(Resealed(record)));
  EXPECT_EQ(CodeOf(newer), ErrorCode::kUnsupported);
  EXPECT_THAT(newer.error().message(), HasSubstr("format 3"));
  // Of a newer format, only the frame is checked.
  const std::string strange("HFSEAL\r\n\xff\0\0\0anything at all....", 31);
  EXPECT_EQ(CodeOf(DecodeSeal(Bytes(Resealed(strange)))), ErrorCode::kUnsupported);
  EXPECT_EQ(CodeOf(DecodeSeal(Bytes(record))), ErrorCode::kDataLoss);
  record[8] = 0;
  EXPECT_EQ(CodeOf(DecodeSeal(Bytes(Resealed(record)))), ErrorCode::kDataLoss);
}

TEST(SealTest, ALifeIsPartOfTheRecordButNotOfTheDigest) {
  ShardSeal seal = DiskSeal();
  const std::string without = EncodeSeal(seal);
  EXPECT_EQ(without[8], 1) << "an older Holdfast can read it";
  seal.life = LifeId{0x0123456789abcdef};
  const std::string record = EncodeSeal(seal);
  EXPECT_EQ(record[8], 2);
  EXPECT_EQ(record.size(), without.size() + 8);
  Result<ShardSeal> read = DecodeSeal(Bytes(record));
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_EQ(read->life, seal.life);
  EXPECT_EQ(*read, seal);
  EXPECT_EQ(read->digest(), DecodeSeal(Bytes(without))->digest());
  EXPECT_EQ(DecodeSeal(Bytes(without))->life, LifeId{});
  // Each seal has exactly one encoding: format 2 without a life is invalid.
  std::string zero = record;
  for (size_t i = 0; i < zero.size() - 8; ++i) {
    if (zero.compare(i, 8, "\xef\xcd\xab\x89\x67\x45\x23\x01") != 0) continue;
    for (size_t k = 0; k < 8; ++k) zero[i + k] = 0;
    break;
  }
  EXPECT_EQ(CodeOf(DecodeSeal(Bytes(Resealed(zero)))), ErrorCode::kDataLoss);
}

TEST(SealTest, RealImagesHaveValidSeals) {
  Random random(9);
  Result<ImageLayout> layout = ImageLayout::Plan({Whole("x", DType::kU8, {3 * kChunkBytes})});
  ASSERT_TRUE(layout);
  std::string image = MakeImage(*layout, Identity(), {}, random).value();
  ShardSeal seal;
  seal.identity = Identity();
  seal.image_bytes = image.size();
  seal.chunk_crcs = ChunkCrcs(Bytes(image));
  Result<ShardSeal> decoded = DecodeSeal(Bytes(EncodeSeal(seal)));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(FirstBadChunk(Bytes(image), decoded->chunk_crcs), kNoChunk);
  // Swapping two chunks keeps the sum of all bytes and must be detected.
  std::swap_ranges(image.begin() + kChunkBytes, image.begin() + 2 * kChunkBytes,
                   image.begin() + 2 * kChunkBytes);
  EXPECT_EQ(FirstBadChunk(Bytes(image), decoded->chunk_crcs), 1U);
}

}  // namespace
}  // namespace holdfast
