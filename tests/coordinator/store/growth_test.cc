#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "coordinator/store/catalog.h"
#include "coordinator/store/rocks_store.h"

// The store on disk does not grow with the number of versions that were committed and removed.

namespace holdfast::coord {
namespace {
constexpr uint64_t kVersions = 200'000;
constexpr uint64_t kKept = 10;
constexpr uint64_t kInBatch = 500;

/// The store removes files meanwhile: those that do not exist any more count as empty.
uint64_t BytesBelow(const std::string& dir) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    std::error_code removed;
    const bool regular = entry.is_regular_file(removed);
    const uintmax_t size = regular ? entry.file_size(removed) : 0;
    if (!removed) bytes += size;
  }
  return bytes;
}

TEST(Growth, TheStoreStaysSmallOverManyVersions) {
  std::string dir = (std::filesystem::temp_directory_path() / "store-XXXXXX").string();
  ASSERT_NE(::mkdtemp(dir.data()), nullptr);
  auto store = RocksStore::Open(dir + "/metadata");
  ASSERT_TRUE(store.has_value()) << store.error().ToString();
  auto catalog = Catalog::Open(*std::move(store), "test");
  ASSERT_TRUE(catalog.has_value()) << catalog.error().ToString();
  uint64_t most = 0;
  std::vector<Effect> effects;
  for (uint64_t step = 1; step <= kVersions; ++step) {
    VersionRecord record;
    record.job = "job";
    record.version = {Incarnation{1}, Step{step}};
    record.world = 8;
    record.tiers = TierBit(Tier::kMemory);
    record.digests.assign(8, 0x0123456789abcdefULL * step);
    effects.emplace_back(PutVersion{record, TierBit(Tier::kMemory)});
    record.tiers |= TierBit(Tier::kPeer) | TierBit(Tier::kDisk);
    effects.emplace_back(PutVersion{record, TierBit(Tier::kDisk)});
    if (step > kKept) {
      effects.emplace_back(EraseVersion{"job", {Incarnation{1}, Step{step - kKept}}});
    }
    if (step % kInBatch != 0) continue;
    const Status written = (*catalog)->Write(effects);
    ASSERT_TRUE(written.ok()) << written.ToString();
    effects.clear();
    if (step % 10'000 == 0) most = std::max(most, BytesBelow(dir));
  }
  // 200,000 versions wrote about 90 MiB.
  EXPECT_LE(most, 24ULL << 20);
  EXPECT_EQ((*catalog)->Read().value().versions.size(), kKept);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace holdfast::coord
