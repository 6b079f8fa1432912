// The coordinator's store is lost while the nodes keep their versions. None of these counts as
// committed, and status names the next command. The job can start again and save, and `adopt` makes
// the complete versions available again.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {
using ::testing::HasSubstr;
using ::testing::Not;

class LostStoreTest : public ProtectedCluster {
 protected:
  static constexpr int kRanks = 3;

  void LoseTheStore() {
    cluster_->coordinator().Kill();
    std::filesystem::remove_all(cluster_->root() + "/coordinator");
    ASSERT_TRUE(cluster_->StartCoordinator().ok());
    ASSERT_TRUE(WaitUntil([&] { return AliveNodes() == kRanks; }, kTimeout)) << Evidence();
  }
  int AliveNodes() {
    const auto status = nlohmann::json::parse(cluster_->Cli({"status", "-o", "json"})->out, nullptr,
                                              /*allow_exceptions=*/false);
    if (!status.is_object() || !status.contains("nodes")) return 0;
    return static_cast<int>(std::count_if(status["nodes"].begin(), status["nodes"].end(),
                                          [](const auto& node) { return node["alive"] == true; }));
  }
  Cluster::CliResult Cli(const std::vector<std::string>& arguments) {
    auto result = cluster_->Cli(arguments);
    EXPECT_TRUE(result.has_value());
    return result.value_or(Cluster::CliResult{});
  }
  /// Returns the commit digest that `versions` shows; empty: none.
  std::string CommitDigestOf(const std::string& wanted) {
    const auto document = nlohmann::json::parse(Cli({"versions", "saved", "-o", "json"}).out,
                                                nullptr, /*allow_exceptions=*/false);
    if (!document.is_object()) return "";
    for (const auto& version : document["versions"]) {
      if (version["version"] != wanted || !version["commit_digest"].is_string()) continue;
      return version["commit_digest"];
    }
    return "";
  }
  std::string CommitsFile(int node) { return cluster_->DataDirs(node)[0] + "/HOLDFAST.commits"; }
  /// Whether the node's file names the version with the digest.
  bool KnowsCommit(int node, const std::string& version, const std::string& digest) {
    const std::string text = ReadAll(CommitsFile(node));
    return text.find(" " + version + " ") != std::string::npos &&
           text.find(" " + digest + "\n") != std::string::npos;
  }
  std::vector<std::string> VersionsOnDisk() {
    const auto document = nlohmann::json::parse(Cli({"versions", "saved", "-o", "json"}).out,
                                                nullptr, /*allow_exceptions=*/false);
    std::vector<std::string> versions;
    if (!document.is_object() || !document.contains("versions")) return versions;
    for (const auto& version : document["versions"]) {
      const bool on_disk = version["tiers"].dump().find("disk") != std::string::npos;
      if (version["state"] == "committed" && on_disk) versions.push_back(version["version"]);
    }
    return versions;
  }
  std::string OnNode(const std::string& version, int rank) {
    return ReadAll(fmt::format("{}/saved/v{}/rank-{}.safetensors", cluster_->DataDirs(rank)[0],
                               version, rank));
  }
  static constexpr int kLost = 1;
  struct Lost {
    std::string version;  // the newest one on disk
    std::string commit_digest;
    std::vector<std::string> originals;  // its images
  };
  /// Saves until the newest version and its parity are on the disks. Then ends all processes, and
  /// removes the store and the disks of one node.
  void LoseANodeAndTheStore(Lost* lost) {
    options_.disk_every = 1;
    ASSERT_NO_FATAL_FAILURE(Start(kRanks, 1));
    SaveUntilProtected();
    job_->Close();
    const auto has_parity = [&](int node) {
      const std::string folder = cluster_->DataDirs(node)[0] + "/saved/v" + lost->version;
      for (int number = 0; number < kRanks; ++number) {
        if (std::filesystem::exists(fmt::format("{}/parity-{}.seal", folder, number))) return true;
      }
      return false;
    };
    const auto protected_on_disk = [&] {
      const std::vector<std::string> versions = VersionsOnDisk();
      if (versions.empty()) return false;
      lost->version = versions.front();
      return has_parity(0) && has_parity(1) && has_parity(2);
    };
    ASSERT_TRUE(WaitUntil(protected_on_disk, kTimeout)) << Evidence();
    lost->commit_digest = CommitDigestOf(lost->version);
    ASSERT_EQ(lost->commit_digest.size(), 16U);
    const auto known = [&] {
      return KnowsCommit(0, lost->version, lost->commit_digest) &&
             KnowsCommit(2, lost->version, lost->commit_digest);
    };
    ASSERT_TRUE(WaitUntil(known, kTimeout)) << ReadAll(CommitsFile(0)) << Evidence();
    for (int rank = 0; rank < kRanks; ++rank) {
      lost->originals.push_back(OnNode(lost->version, rank));
      ASSERT_GT(lost->originals.back().size(), words_ * 8) << lost->version;
    }
    cluster_->KillEverything();
    std::filesystem::remove_all(cluster_->root() + "/coordinator");
    cluster_->DestroyNode(kLost);
    ASSERT_EQ(OnNode(lost->version, kLost), "");
  }
  /// Starts the agents, that of the lost node with empty disks.
  void StartAgents() {
    for (int node = 0; node < kRanks; ++node) ASSERT_TRUE(cluster_->StartAgent(node).ok());
    for (int node = 0; node < kRanks; ++node) AwaitAgent(node);
  }
  /// Expects the bytes in files, in the ranks, and again on the disks of the lost node.
  void ExpectEverythingBack(const Lost& lost) {
    ExpectRestored(lost.version, lost.originals);
    // The rank of the lost node restores by decoding, or from the disk of its node if that has been
    // repaired by now.
    EXPECT_EQ(ToString(ExpectBack(VersionId{}, {}).version), lost.version);
    const auto repaired = [&] { return OnNode(lost.version, kLost) == lost.originals[kLost]; };
    EXPECT_TRUE(WaitUntil(repaired, kTimeout)) << Evidence();
  }
  void ExpectRestored(const std::string& version, const std::vector<std::string>& originals) {
    const std::string out = cluster_->root() + "/out";
    const auto result = Cli({"restore", "saved", "--to", out, "--version", version, "--yes"});
    ASSERT_EQ(result.exit_code, 0) << result.out << result.errors;
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string name = fmt::format("rank-{:05}-of-{:05}.safetensors", rank, kRanks);
      EXPECT_TRUE(ReadAll(out + "/" + name) == originals[static_cast<size_t>(rank)])
          << version << " " << name << " differs";
    }
  }
};

TEST_F(LostStoreTest, VersionsOfALostStoreAreRetainedUntilAdopted) {
  options_.disk_every = 1;
  ASSERT_NO_FATAL_FAILURE(Start(kRanks, 1));
  SaveUntilProtected();
  const uint64_t step = job_->Save();
  // A rank whose slots are busy skips a save, and the version is aborted.
  const auto on_disk = [&] {
    const auto newest = job_->Newest(v1::Tier::kDisk);
    return newest && newest->step.value >= step;
  };
  for (int tries = 0; tries < 10 && !WaitUntil(on_disk, kTimeout / 10); ++tries) job_->Save();
  ASSERT_TRUE(on_disk()) << Evidence();
  job_->Close();
  const std::vector<std::string> before = VersionsOnDisk();
  ASSERT_FALSE(before.empty()) << Evidence();
  const std::string version = before.front();
  std::vector<std::string> originals;
  for (int rank = 0; rank < kRanks; ++rank) {
    originals.push_back(OnNode(version, rank));
    ASSERT_GT(originals.back().size(), words_ * 8) << version;
  }

  ASSERT_NO_FATAL_FAILURE(LoseTheStore());
  EXPECT_TRUE(VersionsOnDisk().empty());
  auto status = Cli({"status"});
  EXPECT_NE(status.exit_code, 0);
  EXPECT_THAT(status.out, HasSubstr("OTHER_LIFE"));
  EXPECT_THAT(status.out, HasSubstr("holdfast adopt"));

  // The job starts afresh, and gets slots although all are full.
  const Status opened = job_->Open();
  ASSERT_TRUE(opened.ok()) << opened.ToString();
  const VersionId own = SaveUntilProtected();
  EXPECT_EQ(own.incarnation.value, 2U) << "above the incarnations on the nodes";
  EXPECT_EQ(OnNode(version, 0), originals[0]) << "retained versions are not deleted";

  auto adopted = Cli({"adopt", "--dry-run"});
  EXPECT_EQ(adopted.exit_code, 0) << adopted.out << adopted.errors;
  EXPECT_THAT(adopted.out, HasSubstr("committed, proved"));
  EXPECT_THAT(adopted.out, HasSubstr(version));
  EXPECT_THAT(Cli({"status"}).out, HasSubstr("OTHER_LIFE")) << "a dry run changes nothing";
  adopted = Cli({"adopt", "saved"});
  EXPECT_EQ(adopted.exit_code, 0) << adopted.out << adopted.errors;
  EXPECT_THAT(Cli({"status"}).out, Not(HasSubstr("OTHER_LIFE")));
  EXPECT_THAT(VersionsOnDisk(), testing::Contains(version)) << Evidence();
  ExpectRestored(version, originals);
  // The next start restores the version that the job saved since.
  ExpectBack(own, {});
}

// Power fails everywhere, and the disks of one node and of the coordinator do not come back.
TEST_F(LostStoreTest, ANodeIsLostTogetherWithTheStore) {
  Lost lost;
  ASSERT_NO_FATAL_FAILURE(LoseANodeAndTheStore(&lost));
  // As after an upgrade just before the loss: no node knows what was committed.
  for (const int node : {0, 2}) ASSERT_TRUE(std::filesystem::remove(CommitsFile(node)));
  ASSERT_TRUE(cluster_->StartCoordinator().ok());
  ASSERT_NO_FATAL_FAILURE(StartAgents());
  Cluster::CliResult would;
  const auto complete = [&] {
    would = Cli({"adopt", "saved", "--dry-run"});
    return would.exit_code == 0;
  };
  ASSERT_TRUE(WaitUntil(complete, kTimeout)) << would.out << Evidence();
  EXPECT_THAT(would.out, HasSubstr("1 of 3 ranks from parity"));
  EXPECT_THAT(would.out, HasSubstr("complete, never known as committed"));
  const auto adopted = Cli({"adopt", "saved"});
  ASSERT_EQ(adopted.exit_code, 0) << adopted.out << adopted.errors;
  ExpectEverythingBack(lost);
}

// The same with --rebuild: no operator adopts anything.
TEST_F(LostStoreTest, ARebuildRestoresWhatIsComplete) {
  Lost lost;
  ASSERT_NO_FATAL_FAILURE(LoseANodeAndTheStore(&lost));
  // The knowledge of one node is enough.
  ASSERT_TRUE(std::filesystem::remove(CommitsFile(0)));
  options_.coordinator_command = {"/bin/sh", "-c", R"(exec "$0" "$@" --rebuild)"};
  cluster_->Reconfigure(options_);
  ASSERT_TRUE(cluster_->StartCoordinator().ok());
  ASSERT_NO_FATAL_FAILURE(StartAgents());
  const auto rebuilt = [&] {
    const auto versions = VersionsOnDisk();
    return !versions.empty() && versions.front() == lost.version;
  };
  ASSERT_TRUE(WaitUntil(rebuilt, kTimeout)) << Evidence();
  EXPECT_EQ(CommitDigestOf(lost.version), lost.commit_digest);
  // The node that knew nothing learns the commit again from the coordinator.
  EXPECT_TRUE(WaitUntil([&] { return KnowsCommit(0, lost.version, lost.commit_digest); }, kTimeout))
      << ReadAll(CommitsFile(0));
  ExpectEverythingBack(lost);
  EXPECT_THAT(Cli({"verify", "saved", "--version", lost.version}).out,
              HasSubstr("1 version with all committed shards"));
}

TEST_F(LostStoreTest, TheNextStartRestoresAnAdoptedVersion) {
  options_.disk_every = 1;
  ASSERT_NO_FATAL_FAILURE(Start(kRanks, 1));
  const VersionId promised = SaveUntilProtected();
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(LoseTheStore());
  const auto adopted = Cli({"adopt"});
  ASSERT_EQ(adopted.exit_code, 0) << adopted.out << adopted.errors;
  const auto restored = ExpectBack(promised, {});
  EXPECT_EQ(restored.version.incarnation.value, 1U);
}

}  // namespace
}  // namespace holdfast::local
