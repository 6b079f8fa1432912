#include "storage/io/uring_pool.h"

#include <sys/mman.h>

#include <vector>

#include "base/fd.h"
#include "tests/storage/io/io_test_util.h"

namespace holdfast {
namespace {

class UringPoolTest : public testing::Test {
 protected:
  void SetUp() override {
    auto ring = UringRing::Create(1);
    if (!ring) GTEST_SKIP() << "no io_uring: " << ring.error().ToString();
  }
  std::unique_ptr<UringRing> Borrow() {
    auto ring = pool_.Borrow();
    EXPECT_TRUE(ring.has_value()) << ring.error().ToString();
    return ring ? *std::move(ring) : nullptr;
  }

  UringPool pool_{"test", 4};
};

TEST_F(UringPoolTest, FindsRegisteredMemoryAndItsEnd) {
  AlignedBuffer a(8 * kBlockBytes);
  AlignedBuffer b(4 * kBlockBytes);
  pool_.RegisterMemory(a.span());
  pool_.RegisterMemory(b.span());
  auto ring = Borrow();
  ASSERT_NE(ring, nullptr);
  EXPECT_EQ(ring->generation(), pool_.generation());
  auto in_a = ring->Find(a.span().data() + 3 * kBlockBytes);
  auto in_b = ring->Find(b.span().data());
  ASSERT_TRUE(in_a.has_value());
  ASSERT_TRUE(in_b.has_value());
  EXPECT_EQ(in_a->bytes, 5 * kBlockBytes);
  EXPECT_EQ(in_b->bytes, 4 * kBlockBytes);
  EXPECT_NE(in_a->index, in_b->index);
  AlignedBuffer stranger(kBlockBytes);
  EXPECT_FALSE(ring->Find(stranger.span().data()).has_value());
}

TEST_F(UringPoolTest, AnOlderRingIsDetectedAndUpdated) {
  AlignedBuffer a(4 * kBlockBytes);
  pool_.RegisterMemory(a.span());
  auto first = Borrow();
  ASSERT_NE(first, nullptr);
  pool_.UnregisterMemory(a.span());
  EXPECT_NE(first->generation(), pool_.generation());
  auto second = Borrow();
  ASSERT_NE(second, nullptr);
  EXPECT_FALSE(second->Find(a.span().data()).has_value());
  pool_.Return(std::move(first));
  auto renewed = Borrow();
  ASSERT_NE(renewed, nullptr);
  EXPECT_FALSE(renewed->Find(a.span().data()).has_value());
  pool_.Return(std::move(renewed));
  pool_.Return(std::move(second));
  AlignedBuffer b(4 * kBlockBytes);
  pool_.RegisterMemory(b.span());
  auto again = Borrow();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->generation(), pool_.generation());
  EXPECT_TRUE(again->Find(b.span().data()).has_value());
}

TEST_F(UringPoolTest, SplitsLargeMemoryAtOneGibibyte) {
  // Map the same MiB of memory repeatedly until the range is large.
  constexpr uint64_t kUnit = 1ULL << 20;
  constexpr uint64_t kBytes = (1ULL << 30) + kUnit;
  UniqueFd unit(::memfd_create("unit", MFD_CLOEXEC));
  ASSERT_TRUE(unit.valid());
  ASSERT_EQ(::ftruncate(unit.get(), kUnit), 0);
  void* memory = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  for (uint64_t at = 0; at < kBytes; at += kUnit) {
    ASSERT_NE(::mmap(static_cast<std::byte*>(memory) + at, kUnit, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_FIXED, unit.get(), 0),
              MAP_FAILED);
  }
  std::span<std::byte> region(static_cast<std::byte*>(memory), kBytes);
  pool_.RegisterMemory(region);
  auto ring = Borrow();
  ASSERT_NE(ring, nullptr);
  auto last = ring->Find(region.data() + (1ULL << 30) - kBlockBytes);
  auto next = ring->Find(region.data() + (1ULL << 30));
  if (last.has_value()) {  // unless the locked-memory limit is small
    EXPECT_EQ(last->bytes, kBlockBytes);
    ASSERT_TRUE(next.has_value());
    EXPECT_EQ(next->bytes, kUnit);
    EXPECT_NE(last->index, next->index);
  }
  pool_.UnregisterMemory(region);
  ring.reset();
  ::munmap(memory, kBytes);
}

TEST_F(UringPoolTest, RefusedMemoryMeansPlainBuffers) {
  constexpr uint64_t kBytes = 4 * kBlockBytes;
  void* memory = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::span<std::byte> region(static_cast<std::byte*>(memory), kBytes);
  pool_.RegisterMemory(region);
  auto ring = Borrow();
  ASSERT_NE(ring, nullptr);
  EXPECT_FALSE(ring->Find(region.data()).has_value());
  pool_.UnregisterMemory(region);
  ::munmap(memory, kBytes);
  AlignedBuffer good(kBytes);
  pool_.RegisterMemory(good.span());
  auto other = Borrow();
  ASSERT_NE(other, nullptr);
  EXPECT_TRUE(other->Find(good.span().data()).has_value());
}

}  // namespace
}  // namespace holdfast
