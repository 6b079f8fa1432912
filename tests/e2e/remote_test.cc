// Tier remote in a directory that all nodes share: versions are copied there, survive the loss of
// all nodes with their disks, and are restored by a cluster of new nodes. A file system that is
// full, read-only or missing delays nothing else.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "testing/cluster/observer.h"
#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {
namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr int kRanks = 4;

class RemoteTest : public ProtectedCluster {
 protected:
  void SetUp() override {
    ProtectedCluster::SetUp();
    options_.disk_every = 1;
    options_.agent_settings.push_back("remote.url=file://" + Remote());
    fs::create_directories(Remote());
  }
  std::string Remote() const { return options_.root + "/lustre"; }

  VersionId SaveUntilRemote(std::optional<VersionId> than = std::nullopt) {
    const bool copied = job_->SaveUntil(
        [&] {
          const auto newest = job_->Newest(v1::Tier::kRemote);
          return newest && (!than || *newest > *than);
        },
        kTimeout);
    EXPECT_TRUE(copied) << "nothing was committed at remote\n" << Evidence();
    return job_->Newest(v1::Tier::kRemote).value_or(VersionId{});
  }
  /// Saves until no rank has skipped the last step.
  bool SaveUntilAllRanksSaved() {
    return job_->SaveUntil(
        [&] {
          const auto newest = job_->Newest(v1::Tier::kMemory);
          return newest && newest->step.value == job_->step();
        },
        kTimeout);
  }
  Json CliJson(std::vector<std::string> command) {
    command.insert(command.end(), {"-o", "json"});
    const auto result = cluster_->Cli(command);
    EXPECT_TRUE(result.has_value());
    const Json parsed = result ? Json::parse(result->out, nullptr, false) : Json();
    EXPECT_FALSE(parsed.is_discarded()) << (result ? result->out + result->errors : "");
    return parsed;
  }
  std::string Cli(const std::vector<std::string>& command, int expected = 0) {
    const auto result = cluster_->Cli(command);
    if (!result) return result.error().ToString();
    EXPECT_EQ(result->exit_code, expected) << result->out << result->errors;
    return result->out + result->errors;
  }
  /// Returns the data files of the version at tier remote.
  std::vector<fs::path> DataFiles(VersionId version) const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(Remote())) {
      const std::string path = entry.path().string();
      if (path.find("/v" + ToString(version) + "/") != std::string::npos &&
          path.ends_with(".safetensors")) {
        files.push_back(entry.path());
      }
    }
    return files;
  }
  size_t VersionDirectories() const {
    size_t count = 0;
    std::error_code ignored;
    for (const auto& entry : fs::recursive_directory_iterator(Remote(), ignored)) {
      if (entry.is_directory() && entry.path().parent_path().filename() == "saved") ++count;
    }
    return count;
  }
};

TEST_F(RemoteTest, ACheckpointSurvivesTheLossOfAllNodesAndRestoresOnNewOnes) {
  options_.coordinator_settings.push_back("remote.keep_last=2");
  ASSERT_NO_FATAL_FAILURE(Start(kRanks, 1, /*spares=*/kRanks));
  VersionId promised = SaveUntilRemote();
  promised = SaveUntilRemote(promised);
  // A wait takes the last step to the tier, although no newer version follows.
  ASSERT_TRUE(SaveUntilAllRanksSaved());
  const uint64_t last = job_->step();
  const v1::Status waited =
      job_->client(0).Wait(last, v1::Tier::kRemote, std::chrono::milliseconds(kTimeout));
  ASSERT_TRUE(waited.ok()) << waited.ToString() << Evidence();
  promised = job_->Newest(v1::Tier::kRemote).value();
  EXPECT_GE(promised.step.value, last);

  const Json status = CliJson({"status"});
  EXPECT_EQ(status["jobs"][0]["remote_committed"], ToString(promised));
  EXPECT_THAT(Cli({"versions", "saved"}), HasSubstr("remote"));
  EXPECT_THAT(Cli({"status"}), HasSubstr("REMOTE"));

  job_->Close();
  cluster_->KillEverything();
  for (int node = 0; node < kRanks; ++node) cluster_->DestroyNode(node);
  ASSERT_EQ(DataFiles(promised).size(), static_cast<size_t>(kRanks));

  ASSERT_TRUE(cluster_->StartCoordinator().ok());
  std::vector<int> nodes;
  for (int node = kRanks; node < 2 * kRanks; ++node) {
    ASSERT_TRUE(cluster_->StartAgent(node).ok());
    nodes.push_back(node);
  }
  for (int node : nodes) AwaitAgent(node);
  const auto restored = ExpectBack(promised, {}, nodes);
  EXPECT_EQ(restored.version, promised);
  for (v1::Tier tier : restored.tiers) EXPECT_EQ(tier, v1::Tier::kRemote);

  // The job trains on; the new nodes copy newer versions, and old ones are removed.
  const VersionId next = SaveUntilRemote(promised);
  const VersionId after = SaveUntilRemote(next);
  EXPECT_GT(after, promised);
  EXPECT_TRUE(WaitUntil([&] { return DataFiles(promised).empty(); }, kTimeout)) << Evidence();
  EXPECT_LE(VersionDirectories(), 4U);
}

TEST_F(RemoteTest, VerifyAndExportReadTheTierAndADamagedShardIsCopiedAgain) {
  options_.coordinator_settings.push_back("remote.every=1000000");
  options_.keep_last = 1000;  // so that a disk still has the shard that is damaged
  ASSERT_NO_FATAL_FAILURE(Start(2, 1));
  const VersionId version = SaveUntilRemote();
  job_->Close();
  ASSERT_TRUE(WaitUntil([&] { return DataFiles(version).size() == 2; }, kTimeout));
  EXPECT_TRUE(WaitUntil(
      [&] {
        return Cli({"verify", "saved", "--deep"}).find("remote") != std::string::npos;
      },
      kTimeout))
      << Evidence();

  const std::vector<fs::path> files = DataFiles(version);
  ASSERT_EQ(files.size(), 2U);
  const std::string good = ReadAll(files[0]);
  std::string bad = good;
  bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 0x10);
  std::ofstream(files[0], std::ios::binary | std::ios::trunc) << bad;
  const auto found = cluster_->Cli({"verify", "saved", "--deep"});
  ASSERT_TRUE(found);
  EXPECT_NE(found->exit_code, 0) << found->out;
  EXPECT_THAT(found->out + found->errors, HasSubstr("remote"));
  EXPECT_TRUE(WaitUntil([&] { return ReadAll(files[0]) == good; }, kTimeout)) << Evidence();
  EXPECT_TRUE(WaitUntil(
      [&] {
        const auto again = cluster_->Cli({"verify", "saved", "--deep"});
        return again && again->exit_code == 0;
      },
      kTimeout))
      << Evidence();
}

TEST_F(RemoteTest, AMissingFileSystemDelaysNoOtherTierAndCopiesFollowItsReturn) {
  fs::remove(Remote());
  ASSERT_NO_FATAL_FAILURE(Start(2, 1));
  std::optional<VersionId> on_disk;
  for (int i = 0; i < 3; ++i) {
    const bool stored = job_->SaveUntil(
        [&] {
          const auto newest = job_->Newest(v1::Tier::kDisk);
          return newest && (!on_disk || *newest > *on_disk);
        },
        kTimeout);
    ASSERT_TRUE(stored) << Evidence();
    on_disk = job_->Newest(v1::Tier::kDisk);
  }
  EXPECT_FALSE(job_->Newest(v1::Tier::kRemote).has_value());
  EXPECT_FALSE(fs::exists(Remote())) << "the root belongs to the file system that is not mounted";
  const v1::Status waited =
      job_->client(0).Wait(on_disk->step.value, v1::Tier::kRemote, std::chrono::milliseconds(500));
  EXPECT_EQ(waited.code(), v1::Code::kDeadlineExceeded) << waited.ToString();

  fs::create_directories(Remote());
  SaveUntilRemote();
  // A file in place of the directory is as good as a file system that is away.
  fs::rename(Remote(), options_.root + "/away");
  std::ofstream(Remote()) << "not a directory";
  on_disk = job_->Newest(v1::Tier::kDisk);
  EXPECT_TRUE(job_->SaveUntil([&] { return job_->Newest(v1::Tier::kDisk) > on_disk; }, kTimeout))
      << Evidence();
  EXPECT_EQ(ReadAll(Remote()), "not a directory");
}

}  // namespace
}  // namespace holdfast::local
