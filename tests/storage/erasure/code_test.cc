#include "storage/erasure/code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/storage/erasure/erasure_test_util.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<ErasureCode> Code(uint32_t k, uint32_t m) {
  auto code = ErasureCode::Make(k, m);
  EXPECT_TRUE(code) << code.error().ToString();
  return std::move(*code);
}

std::vector<Bytes> Encoded(const ErasureCode& code, const std::vector<Bytes>& data, size_t bytes) {
  // The previous contents of the buffers must not matter.
  std::vector<Bytes> parity(code.parity_count(), Bytes(bytes, std::byte{0x5a}));
  Status status = code.Encode(Views(data), Buffers(parity));
  EXPECT_TRUE(status.ok()) << status.ToString();
  return parity;
}

std::vector<Bytes> RandomData(Random& random, uint32_t k, size_t bytes) {
  std::vector<Bytes> data;
  for (uint32_t i = 0; i < k; ++i) data.push_back(RandomSegment(random, bytes));
  return data;
}

TEST(MakeTest, AcceptsExactlyTheShapesWithinTheLimits) {
  for (uint32_t k = 0; k <= 40; ++k) {
    for (uint32_t m = 0; m <= 6; ++m) {
      auto code = ErasureCode::Make(k, m);
      if (k >= 1 && m >= 1 && m <= 4 && k + m <= 32) {
        ASSERT_TRUE(code) << code.error().ToString();
        EXPECT_EQ((*code)->data_count(), k);
        EXPECT_EQ((*code)->parity_count(), m);
      } else {
        ASSERT_FALSE(code) << k << "+" << m;
        EXPECT_EQ(code.error().code(), ErrorCode::kInvalidArgument);
      }
    }
  }
  EXPECT_FALSE(ErasureCode::Make(~0U, 1));
}

// The example of docs/formats/stripe.md. It must never change: parity on disk depends on it.
TEST(EncodeTest, TheDocumentedExample) {
  auto bytes = [](std::initializer_list<int> values) {
    Bytes result;
    for (int value : values) result.push_back(static_cast<std::byte>(value));
    return result;
  };
  const std::vector<Bytes> data = {bytes({0x01, 0x02, 0x03, 0xff}),
                                   bytes({0x10, 0x20, 0x80, 0x00})};
  const std::vector<Bytes> parity = Encoded(*Code(2, 2), data, 4);
  EXPECT_EQ(parity[0], bytes({0x11, 0x22, 0x83, 0xff}));
  EXPECT_EQ(parity[1], bytes({0xed, 0xc7, 0xc2, 0xaa}));
}

TEST(EncodeTest, TheDocumentedMatrix) {
  const std::vector<uint8_t> second_row = {0xbb, 0x7b, 0xa6, 0x46, 0xf5, 0x8f};
  for (uint32_t column = 0; column < 6; ++column) {
    std::vector<Bytes> data(6);
    data[column] = Bytes(1, std::byte{1});
    const std::vector<Bytes> parity = Encoded(*Code(6, 2), data, 1);
    EXPECT_EQ(parity[0][0], std::byte{1});
    EXPECT_EQ(parity[1][0], std::byte{second_row[column]}) << column;
  }
}

TEST(EncodeTest, MatchesTheDefinitionForEveryShape) {
  Random random(1);
  for (auto [k, m] : AllShapes()) {
    auto code = Code(k, m);
    // Lengths around the widths of ISA-L's vectors, where its kernels change.
    for (size_t bytes : {0, 1, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 200, 1024, 1500}) {
      std::vector<Bytes> data = RandomData(random, k, bytes);
      ASSERT_EQ(Encoded(*code, data, bytes), SlowEncode(data, m, bytes))
          << k << "+" << m << ", " << bytes << " bytes";
    }
  }
}

TEST(EncodeTest, AbsentDataCountAsZeros) {
  Random random(2);
  for (auto [k, m] : AllShapes()) {
    auto code = Code(k, m);
    for (uint32_t present = 0; present <= k; present += 1 + k / 4) {
      const size_t bytes = 1 + random.Below(300);
      std::vector<Bytes> data(k);
      for (uint32_t i : Members(RandomSubset(random, k, present))) {
        data[i] = RandomSegment(random, bytes);
      }
      ASSERT_EQ(Encoded(*code, data, bytes), SlowEncode(data, m, bytes))
          << k << "+" << m << ", " << present << " present";
    }
  }
}

/// Returns a copy of `segment` in `memory` at an address congruent to `offset` modulo 64.
std::span<std::byte> PlaceAt(Bytes& memory, const Bytes& segment, size_t offset) {
  memory.resize(segment.size() + 128);
  const size_t address = reinterpret_cast<uintptr_t>(memory.data());
  const size_t skip = (64 - address % 64) % 64 + offset;
  std::copy(segment.begin(), segment.end(), memory.begin() + static_cast<ptrdiff_t>(skip));
  return std::span(memory).subspan(skip, segment.size());
}

TEST(EncodeTest, AlignmentChangesNothing) {
  Random random(3);
  for (uint32_t m : {1U, 2U, 3U}) {
    for (uint32_t k : {1U, 2U, 3U, 7U}) {
      auto code = Code(k, m);
      for (size_t offset : {0, 1, 16, 32, 40}) {
        for (size_t bytes : {96, 129, 4096, 4101, 1 << 17}) {
          std::vector<Bytes> data = RandomData(random, k, bytes);
          std::vector<Bytes> memory(k + m);
          std::vector<std::span<const std::byte>> views;
          std::vector<std::span<std::byte>> parity;
          for (uint32_t i = 0; i < k; ++i) views.push_back(PlaceAt(memory[i], data[i], offset));
          for (uint32_t i = 0; i < m; ++i) {
            parity.push_back(PlaceAt(memory[k + i], Bytes(bytes), offset));
          }
          ASSERT_TRUE(code->Encode(views, parity).ok());
          const std::vector<Bytes> expected = SlowEncode(data, m, bytes);
          for (uint32_t i = 0; i < m; ++i) {
            ASSERT_EQ(Bytes(parity[i].begin(), parity[i].end()), expected[i])
                << k << "+" << m << " at " << offset << ", " << bytes << " bytes";
            // The bytes around the parity are unchanged.
            const auto begin = static_cast<size_t>(parity[i].data() - memory[k + i].data());
            for (size_t at = 0; at < memory[k + i].size(); ++at) {
              if (at < begin || at >= begin + bytes) {
                ASSERT_EQ(memory[k + i][at], std::byte{0}) << at;
              }
            }
          }
        }
      }
    }
  }
}

TEST(EncodeTest, AChangedByteChangesEveryParityAtItsOffsetOnly) {
  Random random(4);
  for (auto [k, m] : AllShapes()) {
    auto code = Code(k, m);
    std::vector<Bytes> data = RandomData(random, k, 100);
    const std::vector<Bytes> before = Encoded(*code, data, 100);
    const size_t place = random.Below(100);
    data[random.Below(k)][place] ^= static_cast<std::byte>(1 + random.Below(255));
    const std::vector<Bytes> after = Encoded(*code, data, 100);
    for (uint32_t i = 0; i < m; ++i) {
      for (size_t at = 0; at < 100; ++at) {
        ASSERT_EQ(before[i][at] != after[i][at], at == place) << k << "+" << m;
      }
    }
  }
}

TEST(EncodeTest, RefusesWrongCountsAndLengths) {
  auto code = Code(3, 2);
  std::vector<Bytes> data(3, Bytes(64));
  std::vector<Bytes> parity(2, Bytes(64, std::byte{7}));
  const std::vector<Bytes> untouched = parity;
  auto refused = [&](const std::vector<Bytes>& from, std::vector<Bytes>& into) {
    Status status = code->Encode(Views(from), Buffers(into));
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << status.ToString();
    return status.message();
  };
  data.emplace_back(64);
  EXPECT_THAT(refused(data, parity), HasSubstr("got 4 data segments, the code has 3"));
  data.resize(2);
  EXPECT_THAT(refused(data, parity), HasSubstr("got 2 data segments"));
  data.assign(3, Bytes(64));
  data[1].pop_back();
  EXPECT_THAT(refused(data, parity), HasSubstr("data segment 1 has 63 bytes, the others have 64"));
  data.assign(3, Bytes(64));
  EXPECT_EQ(parity, untouched);
  parity[1].pop_back();
  EXPECT_THAT(refused(data, parity), HasSubstr("parity segment 4 has 63 bytes"));
  parity.resize(1);
  EXPECT_THAT(refused(data, parity), HasSubstr("got 1 parity segments, the code has 2"));
}

TEST(AccumulateTest, MakesTheSameParityInAnyOrder) {
  Random random(5);
  for (auto [k, m] : AllShapes()) {
    auto code = Code(k, m);
    const size_t bytes = random.Below(400);
    std::vector<Bytes> data = RandomData(random, k, bytes);
    if (random.OneIn(2)) data[random.Below(k)].clear();
    std::vector<uint32_t> order(k);
    std::iota(order.begin(), order.end(), 0U);
    Shuffle(random, order);
    std::vector<Bytes> parity(m, Bytes(bytes));
    for (uint32_t i : order) {
      Status status = code->Accumulate(i, data[i], Buffers(parity));
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    ASSERT_EQ(parity, SlowEncode(data, m, bytes)) << k << "+" << m << ", " << bytes << " bytes";
  }
}

TEST(AccumulateTest, RefusesWrongIndicesAndLengths) {
  auto code = Code(3, 2);
  std::vector<Bytes> parity(2, Bytes(64));
  EXPECT_EQ(code->Accumulate(3, Bytes(64), Buffers(parity)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code->Accumulate(0, Bytes(63), Buffers(parity)).code(), ErrorCode::kInvalidArgument);
  parity.pop_back();
  EXPECT_EQ(code->Accumulate(0, Bytes(64), Buffers(parity)).code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace holdfast
