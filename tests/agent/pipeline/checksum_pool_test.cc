// Several threads compute the same checksums of chunks as one thread, in the same order.

#include "agent/pipeline/checksum_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
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

/// Offers the image in random steps, and helps after each of them.
std::vector<uint32_t> ChecksumsOf(ChecksumPool& pool, std::span<const std::byte> image,
                                  uint64_t seed) {
  Random random(seed);
  Checksums checksums(pool, image);
  for (uint64_t copied = 0; copied < image.size();) {
    copied = std::min(image.size(), copied + random.Below(3 << 20));
    checksums.Offer(copied);
    checksums.ComputeOne();
    EXPECT_LE(checksums.done_bytes(), copied) << "bytes that are not final were read";
  }
  checksums.AwaitOffered();
  EXPECT_EQ(checksums.done_bytes(), image.size());
  return checksums.Take();
}

TEST(ChecksumPoolTest, SeveralSealersGetTheirChecksumsInOrder) {
  for (uint32_t threads : {0U, 1U, 3U}) {
    ChecksumPool pool(threads);
    std::vector<std::thread> sealers;
    for (uint64_t sealer = 0; sealer < 3; ++sealer) {
      sealers.emplace_back([&, sealer] {
        const std::vector<std::byte> image = ImageOf((11 << 20) + sealer * 1000, sealer + 1);
        for (uint64_t round = 0; round < 5; ++round) {
          EXPECT_EQ(ChecksumsOf(pool, image, round), ChunkCrcs(image));
        }
      });
    }
    for (std::thread& sealer : sealers) sealer.join();
  }
}

TEST(ChecksumPoolTest, AnImageWithoutBytesIsDoneAtOnce) {
  ChecksumPool pool(2);
  Checksums checksums(pool, {});
  checksums.Offer(0);
  checksums.AwaitOffered();
  EXPECT_EQ(checksums.done_bytes(), 0u);
  EXPECT_TRUE(checksums.Take().empty());
}

TEST(ChecksumPoolTest, ASaveThatIsGivenUpLeavesNothingRunning) {
  ChecksumPool pool(3);
  for (uint64_t round = 0; round < 50; ++round) {
    const std::vector<std::byte> image = ImageOf(8 << 20, round);
    Checksums checksums(pool, image);
    checksums.Offer(image.size());
  }
}

}  // namespace
}  // namespace holdfast::agent
