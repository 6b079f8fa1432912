// A job whose disk quota is full keeps training: saves to memory continue, the refusal has numbers
// and a health finding, another job is not affected, and disk recovers when retention frees space.

#include <fmt/format.h>

#include "testing/cluster/training.h"
#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;

class DiskQuotaTest : public ProtectedCluster {
 protected:
  void SetUp() override {
    ProtectedCluster::SetUp();
    options_.disk_every = 1;
    words_ = 128 << 10;  // 1 MiB for each shard
    options_.agent_settings.push_back("limits.disk_bytes_per_job=2500KiB");
  }
  std::string Cli(const std::vector<std::string>& arguments) {
    const auto result = cluster_->Cli(arguments);
    return result ? result->out + result->errors : result.error().ToString();
  }
  VersionId Newest(v1::Tier tier) { return job_->Newest(tier).value_or(VersionId{}); }
  /// Saves until `more` further versions are committed in memory.
  void SaveInMemory(int more) {
    for (int i = 0; i < more; ++i) {
      const VersionId last = Newest(v1::Tier::kMemory);
      ASSERT_TRUE(job_->SaveUntil([&] { return Newest(v1::Tier::kMemory) > last; }, kTimeout))
          << Evidence();
    }
  }
  bool IsFull() { return Cli({"status"}).find("disk quota of job 'saved'") != std::string::npos; }
};

TEST_F(DiskQuotaTest, AFullQuotaStopsOnlyTheJobsDiskAndRecovers) {
  options_.nodes = 1;
  cluster_.emplace(options_);
  const Status started = cluster_->Start();
  ASSERT_TRUE(started.ok()) << started.ToString();
  job_.emplace(*cluster_, 1, words_);
  const Status opened = job_->Open();
  ASSERT_TRUE(opened.ok()) << opened.ToString();
  job_->Save();
  ASSERT_TRUE(WaitUntil([&] { return job_->Newest(v1::Tier::kDisk).has_value(); }, kTimeout));
  const std::string oldest = ToString(Newest(v1::Tier::kDisk));
  ASSERT_TRUE(job_->SaveUntil([&] { return IsFull(); }, kTimeout)) << Evidence();
  const VersionId on_disk = Newest(v1::Tier::kDisk);
  EXPECT_THAT(Cli({"status"}), AllOf(HasSubstr("DISK_FULL"), HasSubstr("of 2.4 MiB"),
                                     HasSubstr("limits.disk_bytes_per_job")));
  EXPECT_THAT(AgentLog(0), HasSubstr("ShardNotStored"));
  // Saves to memory continue. What is on disk stays there.
  ASSERT_NO_FATAL_FAILURE(SaveInMemory(5));
  EXPECT_EQ(Newest(v1::Tier::kDisk), on_disk);
  EXPECT_GT(Newest(v1::Tier::kMemory), on_disk);
  EXPECT_THAT(Cli({"versions", "saved"}), HasSubstr(ToString(on_disk)));

  // Another job on the same node has its own quota, and does not end the finding.
  TrainingOptions other;
  other.job = "other";
  other.world = 1;
  other.steps = 12;
  Training training(&*cluster_, other);
  ASSERT_TRUE(training.Start().ok());
  ASSERT_TRUE(training.AwaitFinish(kTimeout).ok()) << training.LogTail();
  EXPECT_THAT(Cli({"versions", "other"}), HasSubstr("disk"));
  EXPECT_TRUE(IsFull());

  // A pinned version stays, and so does the newest: there is still no room.
  EXPECT_EQ(cluster_->Cli({"pin", "saved", oldest})->exit_code, 0) << Cli({"versions", "saved"});
  EXPECT_EQ(cluster_->Cli({"retain", "saved", "--keep-last", "1"})->exit_code, 0);
  ASSERT_NO_FATAL_FAILURE(SaveInMemory(3));
  EXPECT_EQ(Newest(v1::Tier::kDisk), on_disk);
  EXPECT_THAT(Cli({"versions", "saved"}), HasSubstr(oldest));
  EXPECT_TRUE(IsFull());

  // Once retention may remove it, newer versions are written again and again.
  EXPECT_EQ(cluster_->Cli({"unpin", "saved", oldest})->exit_code, 0);
  const VersionId held_up = Newest(v1::Tier::kMemory);
  ASSERT_TRUE(job_->SaveUntil([&] { return Newest(v1::Tier::kDisk) > held_up; }, kTimeout))
      << Evidence();
  const VersionId recovered = Newest(v1::Tier::kDisk);
  ASSERT_TRUE(job_->SaveUntil([&] { return Newest(v1::Tier::kDisk) > recovered; }, kTimeout))
      << Evidence();
  ASSERT_TRUE(WaitUntil([&] { return !IsFull(); }, kTimeout)) << Cli({"status"});

  // The newest version on disk comes back after a power cut.
  const VersionId last = Newest(v1::Tier::kDisk);
  job_->Close();
  cluster_->KillEverything();
  ASSERT_TRUE(cluster_->StartCoordinator().ok());
  ASSERT_TRUE(cluster_->StartAgent(0).ok());
  ASSERT_NO_FATAL_FAILURE(AwaitAgent(0));
  ExpectBack(last, {});
}

}  // namespace
}  // namespace holdfast::local
