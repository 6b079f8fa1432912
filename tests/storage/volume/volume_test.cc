// The volume on real directories.
#include "storage/volume/volume.h"

#include <atomic>
#include <thread>

#include "base/random.h"
#include "tests/storage/volume/volume_test_util.h"

namespace holdfast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Setup {
  uint32_t directories;
  bool io_uring;
};

class VolumeTest : public ::testing::TestWithParam<Setup> {
 protected:
  VolumeOptions Options() const {
    VolumeOptions options = TestOptions();
    options.io.io_uring = GetParam().io_uring;
    return options;
  }
  void Reopen() {
    volume_.reset();
    auto volume = OpenReal(folder_.Dirs(GetParam().directories), Options());
    ASSERT_TRUE(volume) << StatusOf(volume).ToString();
    volume_ = *std::move(volume);
  }
  void SetUp() override { Reopen(); }

  /// Returns the stored bytes of a shard, assembled from only its files.
  std::string ImageFromFiles(const ShardIdentity& identity) {
    std::string base =
        "job/v" + ToString(identity.version) + "/rank-" + std::to_string(identity.rank.value);
    std::string whole = folder_.Dir(0) + "/" + base + ".safetensors";
    if (std::filesystem::exists(whole)) return ReadWhole(whole);
    std::string data;
    for (uint32_t p = 0; p < GetParam().directories; ++p) {
      std::string path =
          folder_.Dir(p) + "/" + base + ".part-" + std::to_string(p) + ".safetensors";
      if (!std::filesystem::exists(path)) break;
      std::string file = ReadWhole(path);
      auto parsed = ParseImage(std::as_bytes(std::span(file)), file.size());
      EXPECT_TRUE(parsed) << path << ": " << StatusOf(parsed).ToString();
      if (!parsed) break;
      EXPECT_EQ(parsed->image_bytes, file.size());
      data += file.substr(parsed->data_offset);
    }
    return data;
  }

  TempFolder folder_;
  std::unique_ptr<Volume> volume_;
};

constexpr uint64_t kMiB = 1ULL << 20;

TEST_P(VolumeTest, EverySizeRoundTripsAndIsStoredAsSafetensors) {
  std::vector<uint64_t> sizes = {0,
                                 1,
                                 63,
                                 64,
                                 4095,
                                 4096,
                                 4097,
                                 100'000,
                                 kMiB - 1,
                                 kMiB,
                                 kMiB - 4096,
                                 3 * kMiB + 17,
                                 9 * kMiB + 4097,
                                 33 * kMiB + 1234};
  uint64_t step = 0;
  for (uint64_t bytes : sizes) {
    TestImage image(Shard(1, ++step, 3), bytes);
    ASSERT_STATUS_OK(WriteShard(*volume_, image));
    std::string on_disk = ImageFromFiles(image.identity);
    ASSERT_GE(image.image.size(), on_disk.size());
    ASSERT_GE(on_disk.size(), bytes);
    EXPECT_EQ(std::memcmp(on_disk.data(), image.image.data() + image.image.size() - on_disk.size(),
                          on_disk.size()),
              0)
        << bytes;
  }
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(volume_->List().size(), sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      ExpectBitExact(*volume_, Shard(1, i + 1, 3), sizes[i]);
    }
    Reopen();
    EXPECT_THAT(volume_->recovery().quarantined, ElementsAre());
    EXPECT_THAT(volume_->recovery().dropped, ElementsAre());
  }
}

TEST_P(VolumeTest, StreamsDuringACopyInUnevenSteps) {
  constexpr uint64_t kData = 21 * kMiB + 777;
  TestImage expected(Shard(2, 5, 1), kData);
  auto slot = *AlignedBuffer::Allocate(expected.image.size());
  std::span<std::byte> image = slot.span().first(expected.image.size());
  auto writer = volume_->CreateShard(expected.identity, image);
  ASSERT_TRUE(writer) << StatusOf(writer).ToString();
  Random random(7);
  for (uint64_t ready = 0; ready < image.size();) {
    uint64_t more = std::min<uint64_t>(random.Below(2 * kMiB), image.size() - ready);
    std::memcpy(image.data() + ready, expected.image.data() + ready, more);
    ready += more;
    ASSERT_STATUS_OK((*writer)->Advance(ready));
  }
  EXPECT_TRUE(volume_->List().empty());
  ASSERT_STATUS_OK((*writer)->Publish(expected.Seal()));
  ExpectBitExact(*volume_, expected.identity, kData);
  EXPECT_EQ((*writer)->Publish(expected.Seal()).code(), ErrorCode::kFailedPrecondition);
}

TEST_P(VolumeTest, TheSealDescribesTheWrittenFiles) {
  TestImage image(Shard(1, 1, 2), 5 * kMiB);
  ASSERT_STATUS_OK(WriteShard(*volume_, image));
  auto seal = volume_->ReadSeal(image.identity.key());
  ASSERT_TRUE(seal);
  EXPECT_EQ(seal->chunk_crcs, image.Seal().chunk_crcs);
  EXPECT_EQ(seal->parts.size(), GetParam().directories);
  auto stored = volume_->List();
  ASSERT_EQ(stored.size(), 1U);
  EXPECT_EQ(stored[0].digest, image.Seal().digest());
  EXPECT_EQ(stored[0].image_bytes, image.image.size());
  EXPECT_EQ(stored[0].parts, GetParam().directories);
  EXPECT_GT(volume_->FreeBytes(), 0U);
  EXPECT_EQ(volume_->Describe().size(), GetParam().directories);
}

TEST_P(VolumeTest, UnpublishedShardsLeaveNoFiles) {
  auto before = FilesBeneath(folder_.path());
  {
    TestImage image(Shard(1, 1, 0), 3 * kMiB);
    auto writer = volume_->CreateShard(image.identity, image.image);
    ASSERT_TRUE(writer);
    ASSERT_STATUS_OK((*writer)->Advance(2 * kMiB));
    EXPECT_EQ((*writer)->Advance(kMiB).code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(FilesBeneath(folder_.path()), before);
  EXPECT_TRUE(volume_->List().empty());
}

TEST_P(VolumeTest, RefusesInvalidRequests) {
  TestImage image(Shard(1, 1, 0), 10'000);
  auto code = [&](const ShardIdentity& identity, std::span<const std::byte> bytes) {
    return StatusOf(volume_->CreateShard(identity, bytes)).code();
  };
  EXPECT_EQ(code(Shard(1, 1, 8), image.image), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(Shard(1, 1, 0, "../up"), image.image), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(Shard(1, 1, 0, "quarantine"), image.image), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(image.identity, {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(image.identity, image.image.subspan(8)), ErrorCode::kInvalidArgument);

  auto writer = volume_->CreateShard(image.identity, image.image);
  ASSERT_TRUE(writer);
  EXPECT_EQ(code(image.identity, image.image), ErrorCode::kFailedPrecondition);
  ShardSeal wrong = image.Seal();
  wrong.identity.rank = Rank{1};
  EXPECT_EQ((*writer)->Publish(wrong).code(), ErrorCode::kInvalidArgument);
  writer->reset();
  auto shorter = volume_->CreateShard(image.identity, image.image);
  ASSERT_TRUE(shorter);
  wrong = image.Seal();
  wrong.image_bytes -= 1;  // the same number of chunks, but another length
  EXPECT_EQ((*shorter)->Publish(wrong).code(), ErrorCode::kInvalidArgument);
  shorter->reset();
  ASSERT_STATUS_OK(WriteShard(*volume_, image));
  EXPECT_EQ(code(image.identity, image.image), ErrorCode::kAlreadyExists);

  ShardKey absent = Shard(9, 9, 0).key();
  auto into = *AlignedBuffer::Allocate(image.image.size());
  EXPECT_EQ(StatusOf(volume_->ReadShard(absent, into.span(), {})).code(), ErrorCode::kNotFound);
  EXPECT_EQ(volume_->VerifyShard(absent, true).code(), ErrorCode::kNotFound);
  EXPECT_EQ(volume_->Quarantine(absent, "test").code(), ErrorCode::kNotFound);
  EXPECT_EQ(StatusOf(volume_->ReadShard(image.identity.key(), into.span().first(4096), {})).code(),
            ErrorCode::kInvalidArgument);
}

TEST_P(VolumeTest, RemovingAVersionRemovesItsFilesAndNoOthers) {
  TestImage kept(Shard(1, 2, 0), 100'000);
  ASSERT_STATUS_OK(WriteShard(*volume_, kept));
  auto before = FilesBeneath(folder_.path());
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_STATUS_OK(WriteShard(*volume_, TestImage(Shard(1, 1, rank), 5 * kMiB)));
  }
  ASSERT_STATUS_OK(volume_->RemoveVersion("job", Shard(1, 1, 0).version));
  EXPECT_EQ(FilesBeneath(folder_.path()), before);
  EXPECT_EQ(volume_->List().size(), 1U);
  EXPECT_EQ(volume_->RemoveVersion("job", Shard(1, 1, 0).version).code(), ErrorCode::kNotFound);
  ExpectBitExact(*volume_, kept.identity, 100'000);
  // Write the same version again, as after a restart.
  TestImage again(Shard(1, 1, 1), 5 * kMiB);
  ASSERT_STATUS_OK(WriteShard(*volume_, again));
  Reopen();
  ExpectBitExact(*volume_, again.identity, 5 * kMiB);
}

TEST_P(VolumeTest, AWriterOfARemovedVersionPublishesNothing) {
  TestImage image(Shard(1, 1, 0), 5 * kMiB);
  auto writer = volume_->CreateShard(image.identity, image.image);
  ASSERT_TRUE(writer);
  ASSERT_STATUS_OK((*writer)->Advance(image.image.size()));
  ASSERT_STATUS_OK(volume_->RemoveVersion("job", image.identity.version));
  EXPECT_EQ((*writer)->Publish(image.Seal()).code(), ErrorCode::kAborted);
  writer->reset();
  EXPECT_TRUE(volume_->List().empty());
  ASSERT_STATUS_OK(WriteShard(*volume_, image));
  ExpectBitExact(*volume_, image.identity, 5 * kMiB);
}

TEST_P(VolumeTest, AStreamingWriterDetectsTheRemoval) {
  TestImage image(Shard(1, 1, 0), 5 * kMiB);
  auto writer = volume_->CreateShard(image.identity, image.image);
  ASSERT_TRUE(writer);
  ASSERT_STATUS_OK(volume_->RemoveVersion("job", image.identity.version));
  EXPECT_EQ((*writer)->Advance(image.image.size()).code(), ErrorCode::kAborted);
  EXPECT_EQ((*writer)->Publish(image.Seal()).code(), ErrorCode::kAborted);
}

TEST_P(VolumeTest, OneFlippedBitAnywhereIsDataLossNamingFileAndChunk) {
  constexpr uint64_t kData = 6 * kMiB + 99;
  TestImage image(Shard(1, 1, 0), kData);
  ASSERT_STATUS_OK(WriteShard(*volume_, image));
  auto into = *AlignedBuffer::Allocate(image.image.size());
  for (const std::string& file : FilesBeneath(folder_.path())) {
    if (!file.ends_with(".safetensors")) continue;
    std::string path = folder_.path() + "/" + file;
    uint64_t bytes = std::filesystem::file_size(path);
    for (uint64_t offset : {uint64_t{9}, uint64_t{4096}, bytes / 2, bytes - 1}) {
      SCOPED_TRACE(path + " at " + std::to_string(offset));
      FlipBit(path, offset);
      auto read = volume_->ReadShard(image.identity.key(), into.span(), {});
      ASSERT_FALSE(read);
      EXPECT_EQ(read.error().code(), ErrorCode::kDataLoss);
      EXPECT_THAT(read.error().message(), HasSubstr(path));
      EXPECT_THAT(read.error().message(),
                  ::testing::AnyOf(HasSubstr("chunk"), HasSubstr("header")));
      EXPECT_EQ(volume_->VerifyShard(image.identity.key(), true).code(), ErrorCode::kDataLoss);
      // A part's own header is in no chunk.
      const uint64_t bad_chunks = BadChunks(*volume_, image);
      EXPECT_LE(bad_chunks, 1);
      EXPECT_TRUE(bad_chunks == 1 || offset != bytes / 2);
      if (offset == 9) {
        EXPECT_EQ(volume_->VerifyShard(image.identity.key(), false).code(), ErrorCode::kDataLoss);
      }
      FlipBit(path, offset);
    }
  }
  ExpectBitExact(*volume_, image.identity, kData);
}

TEST_P(VolumeTest, TheErrorNamesTheDamagedChunk) {
  constexpr uint64_t kData = 8 * kMiB;
  TestImage image(Shard(1, 1, 0), kData);
  ASSERT_STATUS_OK(WriteShard(*volume_, image));
  auto seal = *volume_->ReadSeal(image.identity.key());
  const SealPart& last = seal.parts.back();
  uint64_t damaged = last.image_end - 3;
  std::string name = seal.parts.size() == 1
                         ? "rank-0.safetensors"
                         : "rank-0.part-" + std::to_string(seal.parts.size() - 1) + ".safetensors";
  FlipBit(folder_.Dir(static_cast<uint32_t>(seal.parts.size()) - 1) + "/job/v1-1/" + name,
          damaged - last.image_begin + last.data_offset);
  auto into = *AlignedBuffer::Allocate(image.image.size());
  uint64_t verified = 0;
  auto read = volume_->ReadShard(image.identity.key(), into.span(),
                                 [&](uint64_t bytes) { verified = bytes; });
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message(),
              HasSubstr("chunk " + std::to_string(damaged / kChunkBytes) + " "));
  EXPECT_LE(verified, damaged);
}

TEST_P(VolumeTest, AnyCorruptChunkIsRepairedInPlace) {
  constexpr uint64_t kData = 6 * kMiB + 99;
  TestImage image(Shard(1, 1, 0), kData);
  const ShardKey key = image.identity.key();
  ASSERT_STATUS_OK(WriteShard(*volume_, image));
  const std::vector<std::string> files = FilesBeneath(folder_.path());
  const auto chunk_of = [&](uint64_t index) {
    const auto rest = std::span<const std::byte>(image.image).subspan(index * kChunkBytes);
    return rest.first(std::min<uint64_t>(rest.size(), kChunkBytes));
  };
  for (const std::string& file : files) {
    if (!file.ends_with(".safetensors")) continue;
    const std::string path = folder_.path() + "/" + file;
    const uint64_t bytes = std::filesystem::file_size(path);
    for (uint64_t offset : {bytes / 2, bytes - 1}) {
      SCOPED_TRACE(path + " at " + std::to_string(offset));
      FlipBit(path, offset);
      auto chunks = volume_->OpenChunks(key);
      ASSERT_TRUE(chunks);
      uint64_t bad = 0;
      while (bad < (*chunks)->seal().chunk_crcs.size() && (*chunks)->Read(bad)) ++bad;
      ASSERT_LT(bad, (*chunks)->seal().chunk_crcs.size());
      ASSERT_STATUS_OK(volume_->RewriteChunk(key, bad, chunk_of(bad)));
      EXPECT_EQ(std::filesystem::file_size(path), bytes);
      EXPECT_STATUS_OK(volume_->VerifyShard(key, /*deep=*/true));
    }
  }
  EXPECT_EQ(FilesBeneath(folder_.path()), files);
  // Other bytes are never written there.
  std::vector<std::byte> wrong(chunk_of(1).begin(), chunk_of(1).end());
  wrong[17] ^= std::byte{1};
  EXPECT_EQ(volume_->RewriteChunk(key, 1, wrong).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(volume_->RewriteChunk(key, 99, wrong).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(volume_->RewriteChunk(Shard(1, 2, 0).key(), 1, chunk_of(1)).code(),
            ErrorCode::kNotFound);
  Reopen();
  ExpectBitExact(*volume_, image.identity, kData);
}

TEST(ChunkPlaces, AGoodChunkAtTheWrongPositionIsDataLoss) {
  TempFolder folder;
  auto volume = OpenReal(folder.Dirs(1));
  ASSERT_TRUE(volume);
  TestImage image(Shard(1, 1, 0), 4 * kMiB);
  ASSERT_STATUS_OK(WriteShard(**volume, image));
  const std::string path = folder.Dir(0) + "/job/v1-1/rank-0.safetensors";
  std::string bytes = ReadWhole(path);
  // Swap chunks 1 and 2: each matches the seal's checksum of the other.
  std::swap_ranges(bytes.begin() + kChunkBytes, bytes.begin() + 2 * kChunkBytes,
                   bytes.begin() + 2 * kChunkBytes);
  WriteWhole(path, bytes);
  EXPECT_EQ((*volume)->VerifyShard(image.identity.key(), true).code(), ErrorCode::kDataLoss);
  EXPECT_EQ(BadChunks(**volume, image), 2U);
  auto into = *AlignedBuffer::Allocate(image.image.size());
  auto read = (*volume)->ReadShard(image.identity.key(), into.span(), {});
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kDataLoss);
}

TEST_P(VolumeTest, SwappedFilesOfTwoRanksAreDataLoss) {
  constexpr uint64_t kData = 2 * kMiB;
  for (uint32_t rank : {0U, 1U}) {
    ASSERT_STATUS_OK(WriteShard(*volume_, TestImage(Shard(1, 1, rank), kData)));
  }
  for (const std::string& file : FilesBeneath(folder_.path())) {
    size_t at = file.find("rank-0");
    if (at == std::string::npos || !file.ends_with(".safetensors")) continue;
    std::string one = folder_.path() + "/" + file;
    std::string two = one;
    two.replace(two.find("rank-0"), 6, "rank-1");
    std::filesystem::rename(one, one + ".x");
    std::filesystem::rename(two, one);
    std::filesystem::rename(one + ".x", two);
  }
  Reopen();  // The lengths agree: the structure looks right.
  auto into = *AlignedBuffer::Allocate(kData + kMiB);
  for (uint32_t rank : {0U, 1U}) {
    ShardKey key = Shard(1, 1, rank).key();
    EXPECT_EQ(StatusOf(volume_->ReadShard(key, into.span(), {})).code(), ErrorCode::kDataLoss);
    EXPECT_EQ(volume_->VerifyShard(key, false).code(), ErrorCode::kDataLoss);
    EXPECT_EQ(volume_->VerifyShard(key, true).code(), ErrorCode::kDataLoss);
  }
}

TEST_P(VolumeTest, QuarantinedShardsAreNotOfferedAgainAndNotDeleted) {
  TestImage bad(Shard(1, 1, 0), 3 * kMiB);
  TestImage good(Shard(1, 1, 1), 3 * kMiB);
  ASSERT_STATUS_OK(WriteShard(*volume_, bad));
  ASSERT_STATUS_OK(WriteShard(*volume_, good));
  size_t files = FilesBeneath(folder_.path()).size();
  ASSERT_STATUS_OK(volume_->Quarantine(bad.identity.key(), "damaged by a test"));
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(volume_->List().size(), 1U);
    EXPECT_EQ(volume_->List()[0].identity, good.identity);
    EXPECT_EQ(FilesBeneath(folder_.path()).size(), files);
    Reopen();
    EXPECT_THAT(volume_->recovery().quarantined, ElementsAre());
  }
  ASSERT_STATUS_OK(WriteShard(*volume_, bad));
  ExpectBitExact(*volume_, bad.identity, 3 * kMiB);
}

TEST_P(VolumeTest, RanksWriteReadAndRemoveConcurrently) {
  constexpr uint64_t kData = 5 * kMiB + 321;
  constexpr uint64_t kSteps = 6;
  std::atomic<int> failures{0};
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      for (uint64_t step = 1; step <= kSteps; ++step) {
        TestImage image(Shard(1, step, rank), kData);
        if (!WriteShard(*volume_, image).ok()) ++failures;
        auto into = AlignedBuffer::Allocate(image.image.size());
        if (!volume_->ReadShard(image.identity.key(), into->span(), {}) ||
            std::memcmp(into->data(), image.image.data(), image.image.size()) != 0) {
          ++failures;
        }
        // An older version of another job is written and removed concurrently.
        TestImage other(Shard(1, step, rank, "other-" + std::to_string(rank)), 70'000);
        if (!WriteShard(*volume_, other).ok()) ++failures;
        if (!volume_->RemoveVersion(other.identity.job, other.identity.version).ok()) ++failures;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(failures, 0);
  Reopen();
  EXPECT_EQ(volume_->List().size(), 4 * kSteps);
  for (uint32_t rank = 0; rank < 4; ++rank) ExpectBitExact(*volume_, Shard(1, kSteps, rank), kData);
}

TEST_P(VolumeTest, ReadOnlyOpeningChangesNothing) {
  TestImage image(Shard(1, 1, 0), 3 * kMiB);
  TestImage cut(Shard(1, 2, 0), 3 * kMiB);
  ASSERT_STATUS_OK(WriteShard(*volume_, image));
  ASSERT_STATUS_OK(WriteShard(*volume_, cut));
  volume_.reset();
  std::string damaged;
  for (const std::string& file : FilesBeneath(folder_.path())) {
    if (file.find("v1-2") != std::string::npos && file.ends_with(".safetensors")) damaged = file;
  }
  std::filesystem::resize_file(folder_.path() + "/" + damaged, 5000);
  WriteWhole(folder_.Dir(0) + "/job/v1-1/notes.txt", "mine");
  auto before = FilesBeneath(folder_.path());
  auto dirs = folder_.Dirs(GetParam().directories);
  std::reverse(dirs.begin(), dirs.end());
  auto volume = OpenVolumeReadOnly(dirs, Options().io, Clock::Real());
  ASSERT_TRUE(volume) << StatusOf(volume).ToString();
  ASSERT_EQ((*volume)->List().size(), 2U);
  ExpectBitExact(**volume, image.identity, 3 * kMiB);
  EXPECT_EQ((*volume)->VerifyShard(cut.identity.key(), false).code(), ErrorCode::kDataLoss);
  EXPECT_EQ((*volume)->RemoveVersion("job", image.identity.version).code(),
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ((*volume)->Quarantine(image.identity.key(), "x").code(),
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(StatusOf((*volume)->CreateShard(image.identity, image.image)).code(),
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(FilesBeneath(folder_.path()), before);
}

/// The image's owner may change its memory at any time.
TEST(HostileHeaderTest, AChangedHeaderIsNotPublished) {
  TempFolder folder;
  auto volume = OpenReal(folder.Dirs(3), TestOptions());
  ASSERT_TRUE(volume) << StatusOf(volume).ToString();
  TestImage image(Shard(1, 1, 0), 5 * kMiB);
  const ShardSeal seal = image.Seal();
  const std::string text(reinterpret_cast<const char*>(image.image.data()), 4096);
  const size_t at = text.find("weights");
  ASSERT_NE(at, std::string::npos);

  auto writer = (*volume)->CreateShard(image.identity, image.image);
  ASSERT_TRUE(writer) << StatusOf(writer).ToString();
  image.image[at] = std::byte{'W'};  // still a valid header, but of another tensor
  ASSERT_STATUS_OK((*writer)->Advance(2 * kMiB));
  image.image[at] = std::byte{'w'};
  ASSERT_STATUS_OK((*writer)->Advance(image.image.size()));
  const Status published = (*writer)->Publish(seal);
  EXPECT_EQ(published.code(), ErrorCode::kDataLoss) << published.ToString();
  EXPECT_TRUE((*volume)->List().empty());
  EXPECT_FALSE((*volume)->ReadSeal(image.identity.key()));

  (*writer).reset();
  writer = (*volume)->CreateShard(image.identity, image.image);
  ASSERT_TRUE(writer) << StatusOf(writer).ToString();
  ASSERT_STATUS_OK((*writer)->Publish(seal));
  EXPECT_STATUS_OK((*volume)->VerifyShard(image.identity.key(), true));
}

std::string SetupName(const ::testing::TestParamInfo<Setup>& tested) {
  return std::to_string(tested.param.directories) + (tested.param.io_uring ? "Uring" : "Posix");
}

INSTANTIATE_TEST_SUITE_P(Variants, VolumeTest,
                         ::testing::Values(Setup{1, true}, Setup{1, false}, Setup{3, true},
                                           Setup{3, false}),
                         SetupName);

}  // namespace
}  // namespace holdfast
