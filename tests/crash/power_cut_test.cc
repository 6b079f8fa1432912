// A file system that loses power and a full file system: real ext4 on a loop device.
#include <atomic>
#include <set>

#include "base/mutex.h"
#include "tests/crash/loop_mount.h"
#include "tests/storage/volume/volume_test_util.h"

namespace holdfast {
namespace {

constexpr uint64_t kMiB = 1ULL << 20;
constexpr uint64_t kData = 3 * kMiB + 321;

class PowerCutTest : public ::testing::Test {
 protected:
  void MakeDisk(uint64_t bytes) {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount a loop device";
    disk_ = std::make_unique<LoopMount>();
    Status created = disk_->Create(folder_.path(), bytes);
    if (!created.ok()) {
      GTEST_SKIP() << "no loop mount on this machine: " << created.ToString();
    }
  }
  std::unique_ptr<Volume> Open() {
    auto volume = OpenReal({data_dir()});
    EXPECT_TRUE(volume) << StatusOf(volume).ToString();
    return volume ? *std::move(volume) : nullptr;
  }
  std::string data_dir() const { return disk_->mount_point() + "/holdfast"; }

  TempFolder folder_;
  std::unique_ptr<LoopMount> disk_;
};

std::set<ShardKey> Listed(const Volume& volume) {
  std::set<ShardKey> keys;
  for (const StoredShard& shard : volume.List()) keys.insert(shard.identity.key());
  return keys;
}

TEST_F(PowerCutTest, OnlyShardsReportedDurableAreOffered) {
  MakeDisk(192 * kMiB);
  if (IsSkipped()) return;
  auto volume = Open();
  ASSERT_NE(volume, nullptr);
  for (uint64_t step : {1, 2}) {
    for (uint32_t rank : {0U, 1U}) {
      ASSERT_STATUS_OK(WriteShard(*volume, TestImage(Shard(1, step, rank), kData)));
    }
  }
  ASSERT_STATUS_OK(volume->RemoveVersion("job", Shard(1, 1, 0).version));
  // This shard is written completely but never published.
  TestImage unpublished(Shard(1, 3, 0), kData);
  auto writer = volume->CreateShard(unpublished.identity, unpublished.image);
  ASSERT_TRUE(writer);
  ASSERT_STATUS_OK((*writer)->Advance(unpublished.image.size()));
  // Proves that the power cut works: unsynced data is lost.
  WriteWhole(disk_->mount_point() + "/unsynced", "lost with the power");

  ASSERT_STATUS_OK(disk_->CutPower());
  EXPECT_FALSE((*writer)->Publish(unpublished.Seal()).ok());
  writer->reset();
  volume.reset();
  ASSERT_STATUS_OK(disk_->PowerOn());

  std::error_code missing;
  auto left = std::filesystem::file_size(disk_->mount_point() + "/unsynced", missing);
  EXPECT_TRUE(missing || left == 0) << "the power cut had no effect";
  volume = Open();
  ASSERT_NE(volume, nullptr);
  EXPECT_EQ(Listed(*volume), (std::set<ShardKey>{Shard(1, 2, 0).key(), Shard(1, 2, 1).key()}));
  EXPECT_THAT(volume->recovery().quarantined, ::testing::IsEmpty());
  for (uint32_t rank : {0U, 1U}) ExpectBitExact(*volume, Shard(1, 2, rank), kData);
  ASSERT_STATUS_OK(WriteShard(*volume, unpublished));
  ExpectBitExact(*volume, unpublished.identity, kData);
}

TEST_F(PowerCutTest, APowerCutDuringPublishing) {
  MakeDisk(256 * kMiB);
  if (IsSkipped()) return;
  for (uint64_t round = 1; round <= 4; ++round) {
    SCOPED_TRACE(round);
    auto volume = Open();
    ASSERT_NE(volume, nullptr);
    Mutex mutex;
    std::set<ShardKey> started;
    std::set<ShardKey> reported;
    std::atomic<uint32_t> published{0};
    std::atomic<uint32_t> running{2};
    std::vector<std::thread> ranks;
    for (uint32_t rank : {0U, 1U}) {
      ranks.emplace_back([&, rank] {
        for (uint64_t step = 1; step < 1000; ++step) {
          TestImage image(Shard(round, step, rank), kData);
          {
            MutexLock lock(mutex);
            started.insert(image.identity.key());
          }
          if (!WriteShard(*volume, image).ok()) break;
          MutexLock lock(mutex);
          reported.insert(image.identity.key());
          ++published;
        }
        --running;
      });
    }
    while (published < 5 + round && running > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Status cut = disk_->CutPower();
    for (std::thread& rank : ranks) rank.join();
    ASSERT_STATUS_OK(cut);
    volume.reset();
    ASSERT_STATUS_OK(disk_->PowerOn());

    volume = Open();
    ASSERT_NE(volume, nullptr);
    EXPECT_THAT(volume->recovery().quarantined, ::testing::IsEmpty());
    std::set<ShardKey> listed = Listed(*volume);
    for (const ShardKey& key : reported) EXPECT_TRUE(listed.contains(key)) << ToString(key);
    for (const ShardKey& key : listed) {
      EXPECT_TRUE(started.contains(key)) << ToString(key);
      ExpectBitExact(*volume, Shard(round, key.version.step.value, key.rank.value), kData);
    }
    std::set<VersionId> versions;
    for (const ShardKey& key : listed) versions.insert(key.version);
    for (VersionId version : versions) ASSERT_STATUS_OK(volume->RemoveVersion("job", version));
    EXPECT_EQ(FilesBeneath(data_dir()), (std::vector<std::string>{"HOLDFAST"}));
  }
}

TEST_F(PowerCutTest, AFullDiskKeepsItsShardsAndWorksAgainAfterARemoval) {
  MakeDisk(64 * kMiB);
  if (IsSkipped()) return;
  constexpr uint64_t kLarge = 15 * kMiB;
  auto volume = Open();
  ASSERT_NE(volume, nullptr);
  Status status;
  uint64_t step = 0;
  while (status.ok() && step < 20) {
    status = WriteShard(*volume, TestImage(Shard(1, ++step, 0), kLarge));
  }
  EXPECT_EQ(status.code(), ErrorCode::kOutOfSpace) << status.ToString();
  uint64_t durable = step - 1;
  ASSERT_GE(durable, 2U);
  EXPECT_EQ(volume->List().size(), durable);
  for (uint64_t s = 1; s <= durable; ++s) ExpectBitExact(*volume, Shard(1, s, 0), kLarge);
  EXPECT_EQ(FilesBeneath(data_dir()).size(), 1 + 2 * durable);
  // A second refusal loses nothing either.
  EXPECT_EQ(WriteShard(*volume, TestImage(Shard(1, step, 0), kLarge)).code(),
            ErrorCode::kOutOfSpace);

  ASSERT_STATUS_OK(volume->RemoveVersion("job", Shard(1, 1, 0).version));
  ASSERT_STATUS_OK(WriteShard(*volume, TestImage(Shard(1, step, 0), kLarge)));
  volume.reset();
  volume = Open();
  ASSERT_NE(volume, nullptr);
  EXPECT_EQ(volume->List().size(), durable);
  for (uint64_t s = 2; s <= step; ++s) ExpectBitExact(*volume, Shard(1, s, 0), kLarge);
}

}  // namespace
}  // namespace holdfast
