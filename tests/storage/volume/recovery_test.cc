// The recovery that Open() makes.
#include "storage/volume/recovery.h"

#include "tests/storage/volume/volume_test_util.h"

namespace holdfast {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint64_t kData = 50'000;

class RecoveryTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override {
    Reopen();
    for (uint32_t rank : {0U, 1U}) {
      ASSERT_STATUS_OK(WriteShard(*volume_, TestImage(Shard(1, 1, rank), kData)));
    }
    volume_.reset();
    dirs_ = SimDirectories(disk_, GetParam());
  }
  void Reopen() {
    volume_.reset();
    auto volume = OpenSim(disk_, GetParam());
    ASSERT_TRUE(volume) << StatusOf(volume).ToString();
    volume_ = *std::move(volume);
  }
  const RecoveryReport& report() const { return volume_->recovery(); }
  /// Returns the data file of a rank in the last directory that has one.
  std::string DataFile(uint32_t rank) const {
    std::string name = "rank-" + std::to_string(rank);
    if (GetParam() > 1) name += ".part-" + std::to_string(GetParam() - 1);
    return "job/v1-1/" + name + ".safetensors";
  }
  std::string LastDir() const { return "d" + std::to_string(GetParam() - 1); }
  /// Checks that rank 0 is not listed but none of its files is deleted, that rank 1 is unchanged,
  /// and that another start finds nothing to do.
  void ExpectRankZeroQuarantined(const std::string& why, size_t files_before) {
    ASSERT_EQ(volume_->List().size(), 1U);
    ExpectBitExact(*volume_, Shard(1, 1, 1), kData);
    ASSERT_THAT(report().quarantined, Not(IsEmpty()));
    EXPECT_THAT(report().quarantined[0], HasSubstr(why));
    EXPECT_THAT(report().dropped, IsEmpty());
    EXPECT_EQ(disk_.Files().size(), files_before);
    Reopen();
    EXPECT_THAT(report().quarantined, IsEmpty());
    EXPECT_EQ(volume_->List().size(), 1U);
    EXPECT_EQ(disk_.Files().size(), files_before);
  }

  SimDisk disk_;
  std::vector<std::unique_ptr<Directory>> dirs_;
  std::unique_ptr<Volume> volume_;
};

TEST_P(RecoveryTest, ASealWithoutDataIsQuarantined) {
  ASSERT_STATUS_OK(dirs_.back()->RemoveFile(DataFile(0)));
  size_t files = disk_.Files().size();
  Reopen();
  ExpectRankZeroQuarantined("is missing", files);
}

TEST_P(RecoveryTest, DataOfAnotherLengthIsQuarantined) {
  size_t files = disk_.Files().size();
  ASSERT_STATUS_OK(disk_.Damage(LastDir() + "/" + DataFile(0),
                                [](std::vector<std::byte>& bytes) { bytes.pop_back(); }));
  Reopen();
  ExpectRankZeroQuarantined("but its seal has", files);
}

TEST_P(RecoveryTest, EveryFlippedByteOfASealIsQuarantined) {
  std::string seal = "d0/job/v1-1/rank-0.seal";
  size_t bytes = 0;
  ASSERT_STATUS_OK(disk_.Damage(seal, [&](auto& content) { bytes = content.size(); }));
  for (size_t at = 0; at < bytes; at += 7) {
    SimDisk disk;
    {
      auto volume = OpenSim(disk, GetParam());
      ASSERT_STATUS_OK(WriteShard(**volume, TestImage(Shard(1, 1, 0), kData)));
    }
    ASSERT_STATUS_OK(
        disk.Damage(seal, [&](std::vector<std::byte>& content) { content[at] ^= std::byte{4}; }));
    auto volume = OpenSim(disk, GetParam());
    ASSERT_TRUE(volume);
    EXPECT_THAT((*volume)->List(), IsEmpty()) << at;
    EXPECT_EQ((*volume)->recovery().quarantined.size(), GetParam() + 1) << at;
  }
}

TEST_P(RecoveryTest, AMisdirectedSealIsQuarantined) {
  size_t files = disk_.Files().size();
  ASSERT_STATUS_OK(dirs_[0]->RemoveFile("job/v1-1/rank-0.seal"));
  auto other = dirs_[0]->ReadSmallFile("job/v1-1/rank-1.seal", kSealBytesMax);
  ASSERT_STATUS_OK(dirs_[0]->WriteSmallFile("job/v1-1/rank-0.seal", *other));
  Reopen();
  ExpectRankZeroQuarantined("the seal of another shard, job/1-1/rank-1", files);
}

TEST_P(RecoveryTest, DataWithoutSealIsDropped) {
  ASSERT_STATUS_OK(dirs_[0]->RemoveFile("job/v1-1/rank-0.seal"));
  Reopen();
  EXPECT_THAT(report().quarantined, IsEmpty());
  EXPECT_EQ(report().dropped.size(), GetParam());
  EXPECT_THAT(report().dropped, Contains(HasSubstr(DataFile(0))));
  for (const std::string& file : disk_.Files()) EXPECT_THAT(file, Not(HasSubstr("rank-0")));
  ExpectBitExact(*volume_, Shard(1, 1, 1), kData);
}

TEST_P(RecoveryTest, TemporariesAreDroppedAndEmptyDirectoriesRemoved) {
  for (const auto& dir : dirs_) {
    ASSERT_STATUS_OK(dir->MakeDirectory("job/v1-2"));
    ASSERT_STATUS_OK(
        dir->WriteSmallFile("job/v1-2/rank-0.safetensors.tmp.0123456789abcdef", "half"));
    ASSERT_STATUS_OK(dir->MakeDirectory("idle"));
  }
  ASSERT_STATUS_OK(dirs_[0]->WriteSmallFile("job/v1-1/rank-2.seal.tmp.0123456789abcdef", "half"));
  Reopen();
  EXPECT_THAT(report().quarantined, IsEmpty());
  EXPECT_EQ(report().dropped.size(), GetParam() + 1);
  for (const auto& dir : dirs_) {
    EXPECT_FALSE(dir->List("job/v1-2"));
    EXPECT_FALSE(dir->List("idle"));
  }
  EXPECT_EQ(volume_->List().size(), 2U);
}

TEST_P(RecoveryTest, UnknownEntriesAreQuarantinedAndNeverDeleted) {
  std::vector<std::string> unknown = {"notes.txt", "job/README", "job/v1-1/rank-0.bin",
                                      "job/v1-1/rank-007.seal"};
  for (const std::string& path : unknown) {
    ASSERT_STATUS_OK(dirs_.back()->WriteSmallFile(path, "keep " + path));
  }
  ASSERT_STATUS_OK(dirs_.back()->MakeDirectory("job/old stuff"));
  ASSERT_STATUS_OK(dirs_.back()->WriteSmallFile("job/old stuff/a", "deep"));
  Reopen();
  EXPECT_EQ(report().quarantined.size(), unknown.size() + 1);
  EXPECT_EQ(volume_->List().size(), 2U);
  for (const std::string& path : unknown) {
    std::string flat = path;
    std::replace(flat.begin(), flat.end(), '/', '+');
    EXPECT_THAT(disk_.Files(), Contains(StartsWith(LastDir() + "/quarantine/" + flat + ".")));
  }
  EXPECT_THAT(disk_.Files(), Contains(HasSubstr("/quarantine/job+old stuff.")));
  EXPECT_EQ(volume_->QuarantinedFiles(), unknown.size() + 1);
  Reopen();
  EXPECT_THAT(report().quarantined, IsEmpty());
  EXPECT_EQ(volume_->QuarantinedFiles(), unknown.size() + 1) << "they stay until they are deleted";
}

TEST_P(RecoveryTest, QuarantinedFilesOfEveryDirectoryAreCounted) {
  for (const auto& dir : dirs_) ASSERT_STATUS_OK(dir->WriteSmallFile("notes.txt", "keep"));
  ASSERT_STATUS_OK(dirs_.front()->WriteSmallFile("more.txt", "keep"));
  Reopen();
  EXPECT_EQ(report().quarantined.size(), GetParam() + 1);
  EXPECT_EQ(volume_->QuarantinedFiles(), GetParam() + 1);
}

TEST_P(RecoveryTest, ANewerSealIsLeftInPlaceNotOfferedAndNotRemoved) {
  ASSERT_STATUS_OK(disk_.Damage("d0/job/v1-1/rank-0.seal", [](std::vector<std::byte>& bytes) {
    bytes[8] = std::byte{99};  // the format number follows eight bytes of magic
    uint32_t crc = Crc32c(std::span(bytes).first(bytes.size() - 4));
    std::memcpy(bytes.data() + bytes.size() - 4, &crc, 4);
  }));
  auto files = disk_.Files();
  Reopen();
  EXPECT_EQ(disk_.Files(), files);
  EXPECT_THAT(report().quarantined, IsEmpty());
  EXPECT_THAT(report().dropped, IsEmpty());
  ASSERT_EQ(volume_->List().size(), 1U);
  EXPECT_EQ(volume_->RemoveVersion("job", Shard(1, 1, 0).version).code(), ErrorCode::kUnsupported);
  TestImage image(Shard(1, 1, 0), kData);
  EXPECT_EQ(WriteShard(*volume_, image).code(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(disk_.Files(), files);
}

TEST_P(RecoveryTest, AReadErrorOfASealIsNotTreatedAsDamage) {
  disk_.Inject({.op = SimOp::kRead,
                .effect = SimEffect::kIoError,
                .times = 1,
                .path = [](const std::string& path) { return path.ends_with("rank-0.seal"); }});
  auto files = disk_.Files();
  Reopen();
  EXPECT_EQ(volume_->List().size(), 1U);
  EXPECT_EQ(disk_.Files(), files);
  Reopen();
  EXPECT_EQ(volume_->List().size(), 2U);
  ExpectBitExact(*volume_, Shard(1, 1, 0), kData);
}

TEST_P(RecoveryTest, HalfDeletedVersionsAreDeletedCompletely) {
  for (const auto& dir : dirs_) {
    ASSERT_STATUS_OK(dir->Rename("job/v1-1", "job/v1-1.deleted.0123456789abcdef"));
  }
  ASSERT_STATUS_OK(
      dirs_[0]->WriteSmallFile("job/v1-1.deleted.0123456789abcdef/mine.txt", "keep me"));
  Reopen();
  EXPECT_THAT(volume_->List(), IsEmpty());
  EXPECT_EQ(report().dropped.size(), GetParam());
  for (const std::string& file : disk_.Files()) EXPECT_THAT(file, Not(HasSubstr("rank-")));
  EXPECT_THAT(disk_.Files(), Contains(HasSubstr("mine.txt")));
}

TEST_P(RecoveryTest, DataLeftByAnotherNumberOfDirectoriesIsDropped) {
  std::string stray =
      GetParam() == 1 ? "job/v1-1/rank-0.part-0.safetensors" : "job/v1-1/rank-0.safetensors";
  ASSERT_STATUS_OK(dirs_[0]->WriteSmallFile(stray, "older attempt"));
  Reopen();
  EXPECT_THAT(report().dropped, ElementsAre(HasSubstr(stray)));
  ExpectBitExact(*volume_, Shard(1, 1, 0), kData);
}

INSTANTIATE_TEST_SUITE_P(Directories, RecoveryTest, ::testing::Values(1U, 3U));

// A process that ends between the seal's rename and the directory's sync leaves a shard that is
// visible but not durable. Open() must make it durable before it lists it.
TEST(Recovery, ListedShardsSurviveAPowerCut) {
  SimDisk disk;
  TestImage image(Shard(1, 1, 0), kData);
  {
    auto volume = OpenSim(disk, 1);
    auto writer = (*volume)->CreateShard(image.identity, image.image);
    ASSERT_TRUE(writer);
    // The last sync fails, and so does the removal of the seal.
    disk.Inject({.op = SimOp::kSyncDirectory,
                 .effect = SimEffect::kIoError,
                 .skip = 3,
                 .times = UINT64_MAX,
                 .path = {}});
    disk.Inject(
        {.op = SimOp::kRemoveFile, .effect = SimEffect::kIoError, .times = UINT64_MAX, .path = {}});
    ASSERT_FALSE((*writer)->Publish(image.Seal()).ok());
    EXPECT_THAT((*volume)->List(), IsEmpty());
  }
  disk.ClearFaults();
  {
    auto volume = OpenSim(disk, 1);
    ASSERT_TRUE(volume);
    ASSERT_EQ((*volume)->List().size(), 1U);
  }
  disk.Crash(SimSurvival::kNothing);
  auto volume = OpenSim(disk, 1);
  ASSERT_TRUE(volume);
  ASSERT_EQ((*volume)->List().size(), 1U);
  ExpectBitExact(**volume, image.identity, kData);
}

}  // namespace
}  // namespace holdfast
