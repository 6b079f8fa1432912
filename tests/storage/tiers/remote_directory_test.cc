// What only tier remote does: many nodes write at once, clusters and lives are kept apart, foreign
// data is not touched, and the file system may disappear.

#include "storage/remote/remote_directory.h"

#include <thread>

#include "storage/remote/remote_url.h"
#include "tests/storage/tiers/sim_root.h"

namespace holdfast {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kData = 300'000;

class RemoteDirectoryTest : public ::testing::Test {
 protected:
  std::unique_ptr<TierStore> Node(LifeId life = kLife, const std::string& cluster = "test") {
    const RemoteOptions options = RemoteTestOptions(cluster);
    auto store = std::make_unique<RemoteDirectory>(FileSystemRoot(Root(), options.io), options,
                                                   Clock::Real());
    store->SetLife(life);
    return store;
  }
  std::string Root() const { return folder_.path() + "/ckpt"; }
  std::string Store() const { return Root() + "/test-" + ToString(kLife); }
  void SetUp() override { std::filesystem::create_directory(Root()); }

  TempFolder folder_;
  TestImage image_{Shard(1, 5, 0), kData};
};

TEST_F(RemoteDirectoryTest, NodesWriteTheirShardsOfOneVersionAtOnceAndReadAll) {
  constexpr uint32_t kNodes = 8;
  std::vector<std::unique_ptr<TierStore>> nodes;
  std::vector<std::unique_ptr<TestImage>> images;
  for (uint32_t rank = 0; rank < kNodes; ++rank) {
    nodes.push_back(Node());
    images.push_back(std::make_unique<TestImage>(Shard(1, 5, rank), kData));
  }
  std::vector<Status> written(kNodes);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kNodes; ++rank) {
    threads.emplace_back([&, rank] { written[rank] = WriteTo(*nodes[rank], *images[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : written) EXPECT_STATUS_OK(status);
  for (const auto& node : nodes) {
    ASSERT_EQ(node->ListJob("job")->size(), kNodes);
    for (const auto& image : images) ExpectStored(*node, *image);
  }
  ASSERT_STATUS_OK(nodes[3]->RemoveVersion("job", image_.identity.version));
  EXPECT_THAT(*nodes[0]->ListJob("job"), IsEmpty());
}

TEST_F(RemoteDirectoryTest, LivesAndClustersAreKeptApart) {
  ASSERT_STATUS_OK(WriteTo(*Node(), image_));
  const TestImage other(image_.identity, 700);
  ASSERT_STATUS_OK(WriteTo(*Node(LifeId{0x99}), other));
  ASSERT_STATUS_OK(WriteTo(*Node(kLife, "second"), other));
  ExpectStored(*Node(), image_);
  ExpectStored(*Node(LifeId{0x99}), other);
  ExpectStored(*Node(kLife, "second"), other);
}

TEST_F(RemoteDirectoryTest, NothingIsReadOrWrittenBeforeTheLifeIsKnown) {
  auto node = Node(LifeId{});
  EXPECT_EQ(WriteTo(*node, image_).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(node->ReadSeal(image_.identity.key()).error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(FilesBeneath(folder_.path()), IsEmpty());
}

TEST_F(RemoteDirectoryTest, ForeignDataIsRefusedAndNotTouched) {
  std::filesystem::create_directory(Store());
  WriteWhole(Store() + "/results.txt", "mine");
  const Status status = WriteTo(*Node(), image_);
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("results.txt"));
  EXPECT_THAT(FilesBeneath(Root()), ElementsAre("test-" + ToString(kLife) + "/results.txt"));
  EXPECT_EQ(ReadWhole(Store() + "/results.txt"), "mine");
}

TEST_F(RemoteDirectoryTest, ADirectoryOfAnotherClusterIsRefused) {
  ASSERT_STATUS_OK(WriteTo(*Node(kLife, "second"), image_));
  std::filesystem::rename(Root() + "/second-" + ToString(kLife), Store());
  const auto before = FilesBeneath(Root());
  EXPECT_EQ(WriteTo(*Node(), image_).code(), ErrorCode::kFailedPrecondition);
  EXPECT_FALSE(Node()->ReadSeal(image_.identity.key()).has_value());
  EXPECT_EQ(FilesBeneath(Root()), before);
}

TEST_F(RemoteDirectoryTest, ANodeDoesNotUseTheTierAsItsDataDirectory) {
  ASSERT_STATUS_OK(WriteTo(*Node(), image_));
  const auto before = FilesBeneath(Root());
  const auto volume = OpenReal({Store()});
  ASSERT_FALSE(volume);
  EXPECT_THAT(volume.error().message(), HasSubstr("all nodes share"));
  EXPECT_EQ(FilesBeneath(Root()), before);
}

TEST_F(RemoteDirectoryTest, AMissingRootIsNotMadeAndLosesNoShard) {
  auto node = Node();
  std::filesystem::remove_all(Root());
  EXPECT_EQ(WriteTo(*node, image_).code(), ErrorCode::kUnavailable);
  EXPECT_FALSE(std::filesystem::exists(Root()));
  EXPECT_EQ(node->ReadSeal(image_.identity.key()).error().code(), ErrorCode::kUnavailable);
  SetUp();
  ASSERT_STATUS_OK(WriteTo(*node, image_));
  ExpectStored(*node, image_);
}

TEST_F(RemoteDirectoryTest, AnUnmountedFileSystemIsNotAnEmptyTier) {
  auto node = Node();
  ASSERT_STATUS_OK(WriteTo(*node, image_));
  // The mount point without its file system is an empty directory.
  std::filesystem::rename(Root(), folder_.path() + "/away");
  SetUp();
  const TestImage next(Shard(1, 6, 0), kData);
  // An open handle still reaches the directory. The store looks again for a shard that is not
  // there.
  EXPECT_EQ(node->ReadSeal(next.identity.key()).error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(node->ReadSeal(image_.identity.key()).error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(WriteTo(*node, next).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(node->ListJob("job").error().code(), ErrorCode::kUnavailable);
  // The tier is not empty either for an agent that was started in the meantime.
  EXPECT_EQ(Node()->ReadSeal(image_.identity.key()).error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(FilesBeneath(Root()), IsEmpty());
  std::filesystem::remove(Root());
  std::filesystem::rename(folder_.path() + "/away", Root());
  ExpectStored(*node, image_);
  ASSERT_STATUS_OK(WriteTo(*node, next));
}

TEST_F(RemoteDirectoryTest, ADirectoryThatWasDeletedIsNotMadeAgain) {
  auto node = Node();
  ASSERT_STATUS_OK(WriteTo(*node, image_));
  std::filesystem::remove_all(Store());
  EXPECT_FALSE(WriteTo(*node, TestImage(Shard(1, 6, 0), kData)).ok());
  EXPECT_EQ(WriteTo(*node, TestImage(Shard(1, 6, 0), kData)).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(node->ReadSeal(image_.identity.key()).error().code(), ErrorCode::kUnavailable);
  EXPECT_FALSE(std::filesystem::exists(Store()));
  ASSERT_STATUS_OK(WriteTo(*Node(), image_));  // a restarted agent makes it
}

TEST_F(RemoteDirectoryTest, AFileInPlaceOfTheRootIsUnavailable) {
  std::filesystem::remove(Root());
  WriteWhole(Root(), "a file");
  EXPECT_EQ(WriteTo(*Node(), image_).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(ReadWhole(Root()), "a file");
}

TEST_F(RemoteDirectoryTest, UnfinishedFilesOfAWriterThatWasKilledAreReplaced) {
  ASSERT_STATUS_OK(WriteTo(*Node(), TestImage(Shard(1, 5, 1), kData)));
  const std::string version = Store() + "/job/v1-5/";
  WriteWhole(version + "rank-0.safetensors.tmp.0123456789abcdef", "half");
  WriteWhole(version + "rank-7.safetensors.tmp.0123456789abcdef", "of another node");
  ASSERT_STATUS_OK(WriteTo(*Node(), image_));
  EXPECT_FALSE(std::filesystem::exists(version + "rank-0.safetensors.tmp.0123456789abcdef"));
  EXPECT_TRUE(std::filesystem::exists(version + "rank-7.safetensors.tmp.0123456789abcdef"));
  ASSERT_STATUS_OK(Node()->RemoveVersion("job", image_.identity.version));
  EXPECT_FALSE(std::filesystem::exists(version));
}

TEST_F(RemoteDirectoryTest, AnInterruptedRemovalIsFinished) {
  ASSERT_STATUS_OK(WriteTo(*Node(), image_));
  const std::string job = Store() + "/job/";
  std::filesystem::rename(job + "v1-5", job + "v1-5.deleted.0123456789abcdef");
  EXPECT_THAT(*Node()->ListJob("job"), IsEmpty());
  EXPECT_EQ(Node()->RemoveVersion("job", image_.identity.version).code(), ErrorCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(job + "v1-5.deleted.0123456789abcdef"));
}

TEST_F(RemoteDirectoryTest, OfflineToolsReadTheTierLikeADataDirectory) {
  ASSERT_STATUS_OK(WriteTo(*Node(), image_));
  auto volume = OpenVolumeReadOnly({Store()}, {}, Clock::Real());
  ASSERT_TRUE(volume) << StatusOf(volume).ToString();
  ExpectBitExact(**volume, image_.identity, kData);
}

TEST(RemoteUrl, OnlyAbsolutePathsAreAccepted) {
  EXPECT_EQ(*ParseRemoteUrl("file:///lustre/ckpt"), "/lustre/ckpt");
  EXPECT_EQ(*ParseRemoteUrl("file:///lustre//ckpt/"), "/lustre/ckpt");
  for (const char* bad : {"", "/lustre/ckpt", "file://", "file:///", "file://host/path", "s3://b/p",
                          "file:///a/../b", "file:lustre"}) {
    const auto path = ParseRemoteUrl(bad);
    ASSERT_FALSE(path) << bad;
    EXPECT_EQ(path.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(path.error().message(), HasSubstr("file:///"));
  }
}

}  // namespace
}  // namespace holdfast
