// Devices with I/O errors, full disks, short operations, flipped bits and lost writes.
#include <limits>

#include "tests/storage/volume/volume_test_util.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kData = 300'000;

bool IsData(const std::string& path) { return path.find(".safetensors") != std::string::npos; }
bool IsSeal(const std::string& path) { return path.find(".seal") != std::string::npos; }

class VolumeFaultTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override {
    auto volume = OpenSim(disk_, GetParam(), Options());
    ASSERT_TRUE(volume);
    volume_ = *std::move(volume);
    ASSERT_STATUS_OK(WriteShard(*volume_, earlier_));
    files_ = disk_.Files();
  }
  static VolumeOptions Options() {
    VolumeOptions options = TestOptions();
    options.io.operation_bytes = 16384;
    return options;
  }
  /// Checks that the earlier shard is unchanged, that the failed one left no files, and that a new
  /// attempt succeeds and survives a power cut.
  void ExpectCleanAndWritable() {
    disk_.ClearFaults();
    EXPECT_EQ(disk_.Files(), files_);
    ASSERT_EQ(volume_->List().size(), 1U);
    ASSERT_STATUS_OK(WriteShard(*volume_, image_));
    volume_.reset();
    disk_.Crash(SimSurvival::kNothing);
    auto volume = OpenSim(disk_, GetParam(), Options());
    ASSERT_TRUE(volume);
    EXPECT_THAT((*volume)->recovery().quarantined, IsEmpty());
    ASSERT_EQ((*volume)->List().size(), 2U);
    ExpectBitExact(**volume, earlier_.identity, kData);
    ExpectBitExact(**volume, image_.identity, kData);
  }

  SimDisk disk_{SimDiskOptions{.seed = 11, .operation_bytes = 16384}};
  TestImage earlier_{Shard(1, 1, 0), kData};
  TestImage image_{Shard(1, 2, 0), kData};
  std::unique_ptr<Volume> volume_;
  std::vector<std::string> files_;
};

struct FaultyStep {
  SimOp op;
  bool (*path)(const std::string&);
};

TEST_P(VolumeFaultTest, AnErrorAtAnyStepPublishesNothingAndARetrySucceeds) {
  const FaultyStep steps[] = {{SimOp::kCreate, IsData},         {SimOp::kAllocate, IsData},
                              {SimOp::kWrite, IsData},          {SimOp::kTruncate, IsData},
                              {SimOp::kSync, IsData},           {SimOp::kRename, IsData},
                              {SimOp::kCreate, IsSeal},         {SimOp::kWrite, IsSeal},
                              {SimOp::kSync, IsSeal},           {SimOp::kRename, IsSeal},
                              {SimOp::kSyncDirectory, nullptr}, {SimOp::kMakeDirectory, nullptr}};
  int failed = 0;
  for (const FaultyStep& step : steps) {
    for (uint64_t skip : {0, 1, 2}) {
      SCOPED_TRACE(static_cast<int>(step.op) * 100 + static_cast<int>(skip));
      disk_.Inject({.op = step.op, .effect = SimEffect::kIoError, .skip = skip, .path = step.path});
      uint64_t before = disk_.operations();
      Status status = WriteShard(*volume_, image_);
      ASSERT_GT(disk_.operations(), before);
      disk_.ClearFaults();
      if (!status.ok()) {
        ++failed;
        EXPECT_EQ(status.code(), ErrorCode::kIoError);
        EXPECT_EQ(disk_.Files(), files_);
        ASSERT_EQ(volume_->List().size(), 1U);
        continue;
      }
      ASSERT_STATUS_OK(volume_->RemoveVersion("job", image_.identity.version));
    }
  }
  EXPECT_GE(failed, 12);
  ExpectCleanAndWritable();
}

TEST_P(VolumeFaultTest, AFailedFsyncAbandonsTheFile) {
  disk_.Inject({.op = SimOp::kSync, .effect = SimEffect::kIoError, .path = IsData});
  uint64_t syncs = disk_.count(SimOp::kSync);
  auto writer = volume_->CreateShard(image_.identity, image_.image);
  ASSERT_TRUE(writer);
  Status published = (*writer)->Publish(image_.Seal());
  EXPECT_EQ(published.code(), ErrorCode::kIoError);
  EXPECT_EQ(disk_.count(SimOp::kSync), syncs + 1);
  // The error is final for this writer: it never syncs a second time.
  EXPECT_EQ((*writer)->Publish(image_.Seal()), published);
  EXPECT_EQ((*writer)->Advance(image_.image.size()), published);
  EXPECT_EQ(disk_.count(SimOp::kSync), syncs + 1);
  writer->reset();
  ExpectCleanAndWritable();
}

TEST_P(VolumeFaultTest, AFullDiskIsOutOfSpaceAndKeepsPublishedShards) {
  disk_.SetCapacity(disk_.used_bytes() + 40'000);
  EXPECT_EQ(WriteShard(*volume_, image_).code(), ErrorCode::kOutOfSpace);
  ExpectBitExact(*volume_, earlier_.identity, kData);
  disk_.SetCapacity(std::numeric_limits<uint64_t>::max());
  ExpectCleanAndWritable();
}

TEST_P(VolumeFaultTest, SpaceIsReservedBeforeWriting) {
  disk_.Inject({.op = SimOp::kAllocate, .effect = SimEffect::kOutOfSpace, .path = IsData});
  uint64_t writes = disk_.count(SimOp::kWrite);
  EXPECT_EQ(WriteShard(*volume_, image_).code(), ErrorCode::kOutOfSpace);
  EXPECT_EQ(disk_.count(SimOp::kWrite), writes);
  ExpectCleanAndWritable();
}

TEST_P(VolumeFaultTest, ShortWritesAndReadsAreResumed) {
  disk_.Inject({.op = SimOp::kWrite, .effect = SimEffect::kShort, .times = 9, .path = IsData});
  ASSERT_STATUS_OK(WriteShard(*volume_, image_));
  disk_.Inject({.op = SimOp::kRead, .effect = SimEffect::kShort, .times = 9, .path = IsData});
  ExpectBitExact(*volume_, image_.identity, kData);
}

TEST_P(VolumeFaultTest, ABitFlippedByTheDeviceIsDetectedWhenReading) {
  disk_.Inject({.op = SimOp::kWrite, .effect = SimEffect::kBitFlip, .skip = 3, .path = IsData});
  ASSERT_STATUS_OK(WriteShard(*volume_, image_));
  auto into = *AlignedBuffer::Allocate(image_.image.size());
  auto read = volume_->ReadShard(image_.identity.key(), into.span(), {});
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kDataLoss);
  EXPECT_THAT(read.error().message(), HasSubstr("job/v1-2/rank-0"));
}

TEST_P(VolumeFaultTest, ReadErrorsAreReportedAndNotTreatedAsDamage) {
  disk_.Inject({.op = SimOp::kRead, .effect = SimEffect::kIoError, .skip = 2, .path = IsData});
  auto into = *AlignedBuffer::Allocate(earlier_.image.size());
  auto read = volume_->ReadShard(earlier_.identity.key(), into.span(), {});
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kIoError);
  ExpectBitExact(*volume_, earlier_.identity, kData);
}

TEST_P(VolumeFaultTest, OnlyFinalBytesAreWritten) {
  // The simulated disk copies bytes when an operation completes: only final bytes may be queued.
  auto slot = *AlignedBuffer::Allocate(image_.image.size());
  std::span<std::byte> image = slot.span().first(image_.image.size());
  auto writer = volume_->CreateShard(image_.identity, image);
  ASSERT_TRUE(writer);
  for (uint64_t ready = 0; ready < image.size();) {
    uint64_t more = std::min<uint64_t>(7777, image.size() - ready);
    std::memcpy(image.data() + ready, image_.image.data() + ready, more);
    ready += more;
    ASSERT_STATUS_OK((*writer)->Advance(ready));
  }
  uint64_t streamed = disk_.count(SimOp::kWrite);
  EXPECT_GT(streamed, 0U);
  ASSERT_STATUS_OK((*writer)->Publish(image_.Seal()));
  ExpectBitExact(*volume_, image_.identity, kData);
}

TEST_P(VolumeFaultTest, ARepairedChunkIsReadAgainAndSurvivesAPowerCut) {
  const ShardKey key = earlier_.identity.key();
  const auto chunk = std::span<const std::byte>(earlier_.image);  // less than one chunk
  disk_.Inject({.op = SimOp::kWrite, .effect = SimEffect::kBitFlip, .path = IsData});
  EXPECT_EQ(volume_->RewriteChunk(key, 0, chunk).code(), ErrorCode::kDataLoss)
      << "the device did not store the bytes";
  disk_.Inject({.op = SimOp::kSync, .effect = SimEffect::kIoError, .path = IsData});
  EXPECT_EQ(volume_->RewriteChunk(key, 0, chunk).code(), ErrorCode::kIoError);
  disk_.ClearFaults();
  ASSERT_STATUS_OK(volume_->RewriteChunk(key, 0, chunk));
  volume_.reset();
  disk_.Crash(SimSurvival::kNothing);
  auto volume = OpenSim(disk_, GetParam(), Options());
  ASSERT_TRUE(volume);
  ExpectBitExact(**volume, earlier_.identity, kData);
}

TEST_P(VolumeFaultTest, AFailedRemovalCanBeRepeated) {
  disk_.Inject({.op = SimOp::kRename, .effect = SimEffect::kIoError, .path = {}});
  EXPECT_EQ(volume_->RemoveVersion("job", earlier_.identity.version).code(), ErrorCode::kIoError);
  ExpectBitExact(*volume_, earlier_.identity, kData);
  disk_.Inject({.op = SimOp::kRemoveFile, .effect = SimEffect::kIoError, .path = {}});
  EXPECT_EQ(volume_->RemoveVersion("job", earlier_.identity.version).code(), ErrorCode::kIoError);
  EXPECT_THAT(volume_->List(), IsEmpty());
  volume_.reset();
  auto volume = OpenSim(disk_, GetParam(), Options());
  ASSERT_TRUE(volume);
  EXPECT_EQ(disk_.Files().size(), GetParam());  // the markers
}

INSTANTIATE_TEST_SUITE_P(Directories, VolumeFaultTest, ::testing::Values(1U, 3U));

}  // namespace
}  // namespace holdfast
