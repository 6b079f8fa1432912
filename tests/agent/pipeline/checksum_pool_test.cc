// Checksums of chunks by several threads are those of one thread, in order.

#include "agent/pipeline/checksum_pool.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/random.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {

std::vector<std::byte> ImageOf(uint64_t bytes, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> made(bytes);
  // One changed byte per page is enough to give every chunk its own checksum.
  for (uint64_t at = 0; at < bytes; at += 4096) made[at] = static_cast<std::byte>(random.Next());
  return made;
}

TEST(ChecksumPoolTest, SeveralCallersGetTheirChecksumsInOrder) {
  for (uint32_t threads : {0U, 1U, 3U}) {
    ChecksumPool pool(threads);
    std::vector<std::thread> callers;
    for (uint64_t caller = 0; caller < 3; ++caller) {
      callers.emplace_back([&, caller] {
        const std::vector<std::byte> image = ImageOf((11 << 20) + caller * 1000, caller + 1);
        for (int round = 0; round < 5; ++round) {
          std::vector<uint32_t> crcs;
          // In two calls: the second one appends.
          pool.Append(std::span(image).first(4 << 20), &crcs);
          pool.Append(std::span(image).subspan(4 << 20), &crcs);
          EXPECT_EQ(crcs, ChunkCrcs(image));
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
}

TEST(ChecksumPoolTest, NoBytesHaveNoChecksum) {
  ChecksumPool pool(2);
  std::vector<uint32_t> crcs;
  pool.Append({}, &crcs);
  EXPECT_TRUE(crcs.empty());
}

}  // namespace
}  // namespace holdfast::agent
