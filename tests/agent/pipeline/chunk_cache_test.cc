#include "agent/pipeline/chunk_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {
constexpr uint64_t kChunks = 60;
constexpr uint64_t kImageBytes = kChunks * kChunkBytes - 1000;

std::vector<std::byte> ImageOf(uint32_t rank) {
  std::vector<std::byte> image(kImageBytes);
  for (size_t i = 0; i < image.size(); i += 97) image[i] = static_cast<std::byte>(i / 97 + rank);
  return image;
}

/// A node's trainers restore the same tensor replicas: each chunk comes from another node once. No
/// trainer is more than 12 chunks behind the others, however late its thread runs.
TEST(ChunkCache, TrainersThatReadTheSameChunksReadThemOnce) {
  const std::vector<std::vector<std::byte>> images = {ImageOf(0), ImageOf(1)};
  ChunkCache cache(32);
  std::atomic<uint64_t> bytes_read{0};
  constexpr uint64_t kTogether = 12;  // chunks; a multiple of each unit
  std::barrier together(8);
  std::vector<std::thread> trainers;
  for (uint32_t trainer = 0; trainer < 8; ++trainer) {
    trainers.emplace_back([&, trainer] {
      const uint64_t unit = 1 + trainer % 4;  // chunks; the boundaries of requests may differ
      for (uint32_t rank = 0; rank < 2; ++rank) {
        for (uint64_t chunk = 0; chunk < kChunks; chunk += unit) {
          if (chunk % kTogether == 0) together.arrive_and_wait();
          const uint64_t begin = chunk * kChunkBytes;
          const uint64_t bytes = std::min(unit * kChunkBytes, kImageBytes - begin);
          std::vector<std::byte> into(bytes);
          const Status read =
              cache.Read(Rank{rank}, chunk, into, [&](uint64_t first, std::span<std::byte> target) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                bytes_read += target.size();
                std::copy_n(images[rank].begin() + static_cast<ptrdiff_t>(first * kChunkBytes),
                            target.size(), target.begin());
                return Status::Ok();
              });
          EXPECT_TRUE(read.ok()) << read.ToString();
          EXPECT_TRUE(std::equal(into.begin(), into.end(),
                                 images[rank].begin() + static_cast<ptrdiff_t>(begin)));
        }
      }
    });
  }
  for (std::thread& trainer : trainers) trainer.join();
  EXPECT_EQ(bytes_read, 2 * kImageBytes);
}

TEST(ChunkCache, AFailedReadIsNotKeptAndOthersReadAgain) {
  ChunkCache cache(8);
  std::vector<std::byte> into(3 * kChunkBytes);
  int calls = 0;
  const auto fetch = [&](uint64_t, std::span<std::byte> target) -> Status {
    if (++calls == 1) return UnavailableError("the node is away");
    std::ranges::fill(target, std::byte{7});
    return Status::Ok();
  };
  EXPECT_EQ(cache.Read(Rank{0}, 4, into, fetch).code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(cache.Read(Rank{0}, 4, into, fetch).ok());
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(into.back(), std::byte{7});
  EXPECT_TRUE(cache.Read(Rank{0}, 5, std::span(into).first(kChunkBytes), fetch).ok());
  EXPECT_EQ(calls, 2) << "the chunk was known";
  EXPECT_TRUE(cache.Read(Rank{1}, 5, std::span(into).first(kChunkBytes), fetch).ok());
  EXPECT_EQ(calls, 3) << "another shard";
}

/// A trainer that reads alone keeps nothing, but reads no chunk of a header that is kept.
TEST(ChunkCache, KeptChunksAreTakenAndOthersAreNotKept) {
  const std::vector<std::byte> image = ImageOf(1);
  ChunkCache cache(8);
  std::vector<std::pair<uint64_t, uint64_t>> fetched;  // first chunk, bytes
  const auto fetch = [&](uint64_t first, std::span<std::byte> target) {
    fetched.emplace_back(first, target.size());
    std::copy_n(image.begin() + static_cast<ptrdiff_t>(first * kChunkBytes), target.size(),
                target.begin());
    return Status::Ok();
  };
  std::vector<std::byte> one(kChunkBytes);
  ASSERT_TRUE(cache.Read(Rank{1}, 0, one, fetch).ok());
  ASSERT_TRUE(cache.Read(Rank{1}, 3, one, fetch).ok());
  for (int round = 0; round < 2; ++round) {
    fetched.clear();
    std::vector<std::byte> all(image.size());
    ASSERT_TRUE(cache.ReadKept(Rank{1}, 0, all, fetch).ok());
    EXPECT_EQ(all, image);
    EXPECT_EQ(fetched, (std::vector<std::pair<uint64_t, uint64_t>>{
                           {1, 2 * kChunkBytes}, {4, image.size() - 4 * kChunkBytes}}));
  }
  EXPECT_EQ(cache.ReadKept(Rank{1}, 3, std::span(one).first(10), fetch).code(),
            ErrorCode::kInvalidArgument);
  const auto fail = [](uint64_t, std::span<std::byte>) { return UnavailableError("away"); };
  EXPECT_EQ(cache.ReadKept(Rank{0}, 0, one, fail).code(), ErrorCode::kUnavailable);
}

/// Its memory is bounded.
TEST(ChunkCache, OldChunksAreForgotten) {
  ChunkCache cache(4);
  std::vector<std::byte> into(kChunkBytes);
  int calls = 0;
  const auto read = [&](uint64_t chunk) {
    return cache.Read(Rank{0}, chunk, into, [&](uint64_t, std::span<std::byte>) {
      ++calls;
      return Status::Ok();
    });
  };
  for (uint64_t chunk = 0; chunk < 6; ++chunk) ASSERT_TRUE(read(chunk).ok());
  ASSERT_TRUE(read(5).ok());
  EXPECT_EQ(calls, 6);
  ASSERT_TRUE(read(0).ok());
  EXPECT_EQ(calls, 7);
}

}  // namespace
}  // namespace holdfast::agent
