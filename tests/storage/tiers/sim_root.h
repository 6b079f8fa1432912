#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "storage/remote/remote_directory.h"
#include "tests/storage/volume/volume_test_util.h"

namespace holdfast {

/// The root of a shared tier on a simulated disk. The disk outlives it.
class SimRoot final : public SharedRoot {
 public:
  explicit SimRoot(SimDisk& disk) : disk_(disk) {}
  Result<std::unique_ptr<Directory>> Open(const std::string& name, bool make) override {
    const std::vector<std::string> files = disk_.Files();
    const bool there = std::any_of(files.begin(), files.end(), [&](const std::string& file) {
      return file.starts_with(name + "/");
    });
    if (!there && !make) return Fail(NotFoundError(name + " does not exist"));
    return disk_.Open(name);
  }

 private:
  SimDisk& disk_;
};

inline constexpr LifeId kLife{0x1234};

inline RemoteOptions RemoteTestOptions(const std::string& cluster = "test") {
  RemoteOptions options;
  options.cluster = cluster;
  options.io.operation_bytes = 16384;
  options.io.queue_depth = 4;
  return options;
}

/// Opens the tier remote on a simulated disk, as one more node does.
inline std::unique_ptr<TierStore> RemoteOn(SimDisk& disk, LifeId life = kLife,
                                           const std::string& cluster = "test") {
  auto store = std::make_unique<RemoteDirectory>(std::make_unique<SimRoot>(disk),
                                                 RemoteTestOptions(cluster), Clock::Real());
  store->SetLife(life);
  return store;
}

inline Status WriteTo(TierStore& store, const TestImage& image) {
  auto writer = store.CreateShard(image.identity, image.image);
  if (!writer) return writer.error();
  return (*writer)->Publish(image.Seal());
}

/// Expects that the store has exactly the bytes of `image`.
inline void ExpectStored(TierStore& store, const TestImage& image) {
  SCOPED_TRACE(ToString(image.identity.key()));
  auto chunks = store.OpenChunks(image.identity.key());
  ASSERT_TRUE(chunks) << StatusOf(chunks).ToString();
  const ShardSeal& seal = (*chunks)->seal();
  EXPECT_EQ(seal.digest(), image.Seal().digest());
  uint64_t at = 0;
  for (uint64_t i = 0; i < seal.chunk_crcs.size(); ++i) {
    auto chunk = (*chunks)->Read(i);
    ASSERT_TRUE(chunk) << StatusOf(chunk).ToString();
    ASSERT_LE(at + chunk->size(), image.image.size());
    EXPECT_EQ(std::memcmp(chunk->data(), image.image.data() + at, chunk->size()), 0);
    at += chunk->size();
  }
  EXPECT_EQ(at, image.image.size());
}

}  // namespace holdfast
