// A finished job keeps its redundancy. The shards of a replaced node are rebuilt on the new node,
// and the loss of two nodes in sequence loses no data. Until a shard is rebuilt, it is decoded on
// demand.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {
using ::testing::HasSubstr;

class FinishedJobTest : public ProtectedCluster {
 protected:
  std::string FileOf(int node, const std::string& version, const std::string& name) const {
    return fmt::format("{}/saved/v{}/{}", cluster_->DataDirs(node)[0], version, name);
  }
  nlohmann::json Json(const std::vector<std::string>& arguments) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"-o", "json"});
    auto result = cluster_->Cli(all);
    return result ? nlohmann::json::parse(result->out, nullptr, false) : nlohmann::json();
  }
  /// Versions on disk that survive both a power cut and a lost node. Empty unless all of them do.
  std::vector<std::string> SafeVersions() {
    std::vector<std::string> safe;
    const nlohmann::json document = Json({"versions", "saved"});
    if (!document.contains("versions")) return safe;
    for (const auto& version : document["versions"]) {
      if (version["state"] != "committed") continue;
      const std::string survives = version["survives"];
      const bool on_disk = version["tiers"].dump().find("disk") != std::string::npos;
      if (on_disk && survives.find("node of each group + full power cut") == std::string::npos) {
        return {};
      }
      if (on_disk) safe.push_back(version["version"]);
    }
    return safe;
  }
  bool IsUnderProtected() {
    const nlohmann::json document = Json({"status"});
    return !document.contains("jobs") || !document["jobs"][0]["under_protected"].empty();
  }
  /// Whether the node has the shards and parity shards of `member` for all versions, with seals.
  bool HasShardsOf(int member, int node) {
    return std::all_of(versions_.begin(), versions_.end(), [&](const std::string& version) {
      return std::filesystem::exists(FileOf(node, version, fmt::format("rank-{}.seal", member))) &&
             std::filesystem::exists(FileOf(node, version, fmt::format("parity-{}.seal", member)));
    });
  }
  bool IsRebuilt(int node) { return HasShardsOf(node, node); }
  void ExpectSameShardsOf(int member, int node) {
    for (const std::string& version : versions_) {
      const std::string name = fmt::format("rank-{}.safetensors", member);
      EXPECT_TRUE(ReadAll(FileOf(node, version, name)) == originals_[std::pair(version, member)])
          << version;
    }
  }
  /// Runs a job that saves some versions and ends. All versions on disk are protected.
  void SaveAndEnd(int spares = 0) {
    options_.disk_every = 1;
    words_ = 200'000;  // more than one chunk
    ASSERT_NO_FATAL_FAILURE(Start(4, 1, spares));
    SaveUntilProtected();
    for (int i = 0; i < 3; ++i) {
      const uint64_t step = job_->Save();
      WaitUntil(
          [&] {
            const auto newest = job_->Newest(v1::Tier::kDisk);
            return newest && newest->step.value >= step;
          },
          std::chrono::seconds(10));
    }
    job_->Close();
    ASSERT_TRUE(WaitUntil([&] { return SafeVersions().size() >= 2; }, kTimeout)) << Evidence();
    versions_ = SafeVersions();
    for (const std::string& version : versions_) {
      for (int rank = 0; rank < 4; ++rank) {
        const std::string name = fmt::format("rank-{}.safetensors", rank);
        std::string& bytes = originals_[std::pair(version, rank)];
        bytes = ReadAll(FileOf(rank, version, name));
        ASSERT_GT(bytes.size(), words_ * 8) << FileOf(rank, version, name);
      }
    }
  }
  void ExpectRestored(const std::string& version) {
    const std::string out = cluster_->root() + "/out";
    std::filesystem::remove_all(out);
    auto result = cluster_->Cli({"restore", "saved", "--to", out, "--version", version, "--yes"});
    ASSERT_TRUE(result.has_value());
    ASSERT_EQ(result->exit_code, 0) << result->out << result->errors;
    for (int rank = 0; rank < 4; ++rank) {
      const std::string name = fmt::format("rank-{:05}-of-00004.safetensors", rank);
      EXPECT_TRUE(ReadAll(out + "/" + name) == originals_[std::pair(version, rank)])
          << version << " " << name << " differs";
    }
  }

  std::vector<std::string> versions_;
  std::map<std::pair<std::string, int>, std::string> originals_;
};

TEST_F(FinishedJobTest, LosingTwoNodesInSequenceLosesNothing) {
  ASSERT_NO_FATAL_FAILURE(SaveAndEnd());
  Replace(2);
  ASSERT_TRUE(WaitUntil([&] { return IsRebuilt(2); }, kTimeout)) << Evidence();
  EXPECT_TRUE(WaitUntil([&] { return !IsUnderProtected(); }, kTimeout)) << Evidence();
  ExpectSameShardsOf(2, 2);

  cluster_->DestroyNode(0);
  EXPECT_TRUE(WaitUntil([&] { return IsUnderProtected(); }, kTimeout));
  for (const std::string& version : versions_) ExpectRestored(version);
  auto verified = cluster_->Cli({"verify", "saved", "--version", versions_[0], "--deep"});
  ASSERT_TRUE(verified.has_value());
  EXPECT_EQ(verified->exit_code, 2) << verified->out << verified->errors;
  EXPECT_THAT(verified->out, HasSubstr("decoded from its parity group, every byte verified"));
  // The same, offline, from the disks of the other nodes.
  std::vector<std::string> offline = {"verify", "saved", "--version", versions_[0], "--data-dir"};
  for (int node : {1, 2, 3}) offline.push_back(cluster_->DataDirs(node)[0]);
  verified = cluster_->Cli(offline);
  ASSERT_TRUE(verified.has_value());
  EXPECT_EQ(verified->exit_code, 2) << verified->out << verified->errors;

  ASSERT_TRUE(cluster_->StartAgent(0).ok());
  AwaitAgent(0);
  ASSERT_TRUE(WaitUntil([&] { return IsRebuilt(0); }, kTimeout)) << Evidence();
  for (const std::string& version : versions_) ExpectRestored(version);
}

TEST_F(FinishedJobTest, AnotherNodeReplacesAPermanentlyLostMember) {
  options_.coordinator_settings = {"peers.rehome_after_s=2"};
  ASSERT_NO_FATAL_FAILURE(SaveAndEnd(/*spares=*/1));
  ASSERT_TRUE(cluster_->StartAgent(4).ok());
  AwaitAgent(4);
  cluster_->DestroyNode(2);
  ASSERT_TRUE(WaitUntil([&] { return HasShardsOf(2, 4); }, kTimeout)) << Evidence();
  EXPECT_TRUE(WaitUntil([&] { return !IsUnderProtected(); }, kTimeout)) << Evidence();
  ExpectSameShardsOf(2, 4);
  cluster_->DestroyNode(0);
  for (const std::string& version : versions_) ExpectRestored(version);
}

}  // namespace
}  // namespace holdfast::local
