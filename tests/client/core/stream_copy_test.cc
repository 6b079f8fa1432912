#include "client/core/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace holdfast::client {
namespace {

constexpr std::byte kUntouched{0xA5};

std::vector<std::byte> RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator());
  return bytes;
}

/// Copies `bytes` bytes from offset `from` of one buffer to offset `to` of another, and compares
/// the complete target with the expected bytes.
void ExpectCopied(size_t bytes, size_t from, size_t to) {
  SCOPED_TRACE(testing::Message() << bytes << " bytes from " << from << " to " << to);
  const std::vector<std::byte> source = RandomBytes(from + bytes, static_cast<uint32_t>(bytes));
  std::vector<std::byte> expected(to + bytes + 64, kUntouched);
  std::vector<std::byte> target = expected;
  std::copy(source.begin() + static_cast<ptrdiff_t>(from), source.end(),
            expected.begin() + static_cast<ptrdiff_t>(to));
  StreamCopy(target.data() + to, source.data() + from, bytes);
  EXPECT_TRUE(target == expected);
}

TEST(StreamCopyTest, EveryOffsetWithinALine) {
  for (size_t from : {0, 1, 8, 63}) {
    for (size_t to = 0; to < 64; ++to) ExpectCopied((16 << 10) + 200, from, to);
  }
}

TEST(StreamCopyTest, EverySizeAroundTheThreshold) {
  for (size_t bytes : {0, 1, 7, 64, 100}) ExpectCopied(bytes, 3, 5);
  for (size_t bytes = (16 << 10) - 70; bytes < (16 << 10) + 140; ++bytes) {
    ExpectCopied(bytes, 1, 16);
    ExpectCopied(bytes, 0, 63);
  }
}

TEST(StreamCopyTest, ZeroBytesFromNull) { StreamCopy(nullptr, nullptr, 0); }

}  // namespace
}  // namespace holdfast::client
