// The quotas of disk, per job and per user.
#include "storage/volume/quota_volume.h"

#include <thread>

#include "base/config.h"
#include "tests/storage/volume/volume_test_util.h"

namespace holdfast {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kData = 256 << 10;

class QuotaTest : public ::testing::Test {
 protected:
  /// Opens the volume. The quotas are numbers of shards of the test.
  void Open(double job_shards, double user_shards = 0) {
    volume_.reset();
    DiskQuotas quotas;
    quotas.job_bytes = static_cast<uint64_t>(job_shards * static_cast<double>(kShard));
    quotas.user_bytes = static_cast<uint64_t>(user_shards * static_cast<double>(kShard));
    quotas.patience = patience_;
    quotas.owner = [this](const std::string& job) -> std::optional<uid_t> {
      const auto found = owners_.find(job);
      return found == owners_.end() ? std::nullopt : std::optional<uid_t>(found->second);
    };
    auto volume = OpenSim(disk_, 1);
    ASSERT_TRUE(volume) << StatusOf(volume).ToString();
    volume_ = WithQuotas(*std::move(volume), quotas, Clock::Real());
  }
  Status Write(uint64_t step, uint32_t rank = 0, const std::string& job = "job") {
    return WriteShard(*volume_, TestImage(Shard(1, step, rank, job), kData));
  }
  Status Remove(uint64_t step, const std::string& job = "job") {
    return volume_->RemoveVersion(job, {Incarnation{1}, Step{step}});
  }
  void ExpectFull(const Status& status, const std::string& whose) {
    EXPECT_EQ(status.code(), ErrorCode::kOutOfSpace) << status.ToString();
    EXPECT_THAT(status.message(), AllOf(::testing::StartsWith(kDiskQuota), HasSubstr(whose),
                                        HasSubstr("needs "), HasSubstr(" of ")));
  }

  static inline const uint64_t kShard = TestImage(Shard(1, 1, 0), kData).image.size() + 64;
  SimDisk disk_;
  std::chrono::milliseconds patience_{0};
  std::map<std::string, uid_t> owners_;
  std::unique_ptr<Volume> volume_;
};

TEST_F(QuotaTest, WithoutLimitsEverythingIsWritten) {
  Open(0, 0);
  owners_["job"] = 1000;
  for (uint64_t step = 1; step <= 5; ++step) ASSERT_STATUS_OK(Write(step));
  EXPECT_EQ(volume_->List().size(), 5U);
}

TEST_F(QuotaTest, AFullQuotaRefusesWithNumbersAndRecoversAfterARemoval) {
  Open(2);
  ASSERT_STATUS_OK(Write(1));
  ASSERT_STATUS_OK(Write(2));
  const Status refused = Write(3);
  ExpectFull(refused, "job 'job'");
  EXPECT_THAT(refused.message(), AllOf(HasSubstr(FormatBytes(2 * kShard)), HasSubstr("job/1-3"),
                                       HasSubstr("limits.disk_bytes_per_job")));
  // Nothing was removed for it, neither the newest version nor an older, perhaps pinned one.
  EXPECT_EQ(volume_->List().size(), 2U);
  ASSERT_STATUS_OK(Remove(1));
  EXPECT_STATUS_OK(Write(4));
  ExpectBitExact(*volume_, Shard(1, 4, 0), kData);
}

TEST_F(QuotaTest, AQuotaSmallerThanOneVersionRefusesAll) {
  Open(0.5);
  ExpectFull(Write(1), "job 'job'");
  ExpectFull(Write(2), "job 'job'");
  EXPECT_TRUE(volume_->List().empty());
}

TEST_F(QuotaTest, AQuotaLoweredAtARestartRemovesNothing) {
  Open(3);
  for (uint64_t step = 1; step <= 3; ++step) ASSERT_STATUS_OK(Write(step));
  Open(1.5);
  EXPECT_EQ(volume_->List().size(), 3U);
  ExpectFull(Write(4), "job 'job'");
  ASSERT_STATUS_OK(Remove(1));
  ExpectFull(Write(4), "job 'job'");
  ASSERT_STATUS_OK(Remove(2));
  ASSERT_STATUS_OK(Remove(3));
  EXPECT_STATUS_OK(Write(4));
}

TEST_F(QuotaTest, ParityAndFinishedJobsCountForTheirJobAlone) {
  Open(2);
  ShardIdentity parity = Shard(1, 1, 0, "other");
  parity.rank = ParityRank(0);
  ASSERT_STATUS_OK(WriteShard(*volume_, TestImage(parity, kData)));
  ASSERT_STATUS_OK(Write(1, 1, "other"));
  ExpectFull(Write(2, 1, "other"), "job 'other'");
  EXPECT_STATUS_OK(Write(1));
  EXPECT_STATUS_OK(Write(2));
}

TEST_F(QuotaTest, AllJobsOfAUserShareTheUsersQuota) {
  owners_ = {{"a", 1000}, {"b", 1000}, {"c", 1001}, {"root", 0}};
  Open(0, 2);
  ASSERT_STATUS_OK(Write(1, 0, "a"));
  ASSERT_STATUS_OK(Write(1, 0, "b"));
  const Status refused = Write(2, 0, "b");
  ExpectFull(refused, "uid 1000");
  EXPECT_THAT(refused.message(), HasSubstr("limits.disk_bytes_per_user"));
  // Neither other users nor root nor jobs without a known user are affected.
  for (uint64_t step = 1; step <= 2; ++step) EXPECT_STATUS_OK(Write(step, 0, "c"));
  for (uint64_t step = 1; step <= 3; ++step) {
    EXPECT_STATUS_OK(Write(step, 0, "root"));
    EXPECT_STATUS_OK(Write(step, 0, "nobodys"));
  }
  // A job of the same name that belongs to another user now counts for that user.
  owners_["a"] = 1002;
  EXPECT_STATUS_OK(Write(2, 0, "b"));
}

TEST_F(QuotaTest, BothQuotasHold) {
  owners_ = {{"a", 1000}, {"b", 1000}};
  Open(2, 3);
  ASSERT_STATUS_OK(Write(1, 0, "a"));
  ASSERT_STATUS_OK(Write(2, 0, "a"));
  ExpectFull(Write(3, 0, "a"), "job 'a'");
  ASSERT_STATUS_OK(Write(1, 0, "b"));
  ExpectFull(Write(2, 0, "b"), "uid 1000");
}

TEST_F(QuotaTest, ShardsBeingWrittenCountOnce) {
  Open(2);
  const TestImage first(Shard(1, 1, 0), kData);
  const TestImage second(Shard(1, 1, 1), kData);
  auto one = volume_->CreateShard(first.identity, first.image);
  ASSERT_TRUE(one);
  auto two = volume_->CreateShard(second.identity, second.image);
  ASSERT_TRUE(two);
  ExpectFull(Write(1, 2), "job 'job'");
  ASSERT_STATUS_OK((*one)->Publish(first.Seal()));
  two->reset();  // given up
  EXPECT_STATUS_OK(Write(1, 2));
  one->reset();
  ExpectFull(Write(1, 3), "job 'job'");
}

TEST_F(QuotaTest, AShardThatIsThereAlreadyIsNoQuestionOfSpace) {
  Open(1);
  ASSERT_STATUS_OK(Write(1));
  EXPECT_EQ(Write(1).code(), ErrorCode::kAlreadyExists);
}

TEST_F(QuotaTest, AWriteWaitsForARemovalAndOnlyOnce) {
  patience_ = std::chrono::seconds(30);
  Open(1);
  ASSERT_STATUS_OK(Write(1));
  std::thread retention([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_STATUS_OK(Remove(1));
  });
  const auto waits_since = std::chrono::steady_clock::now();
  EXPECT_STATUS_OK(Write(2));
  EXPECT_LT(std::chrono::steady_clock::now() - waits_since, patience_);
  retention.join();

  patience_ = std::chrono::milliseconds(300);
  Open(1);
  const auto timed = [&] {
    const auto begun = std::chrono::steady_clock::now();
    ExpectFull(Write(3), "job 'job'");
    return std::chrono::steady_clock::now() - begun;
  };
  EXPECT_GE(timed(), patience_);
  EXPECT_LT(timed(), patience_);
}

}  // namespace
}  // namespace holdfast
