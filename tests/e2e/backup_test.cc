// `holdfast backup` against a running coordinator: the store is lost, and the backup replaces it.
// A backup that was interrupted is not taken for a complete one.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;

class BackupTest : public ProtectedCluster {
 protected:
  static constexpr int kRanks = 2;

  void Begin() {
    words_ = 8 << 10;
    options_.disk_every = 1;
    options_.keep_last = 1000;
    ASSERT_NO_FATAL_FAILURE(Start(kRanks, 1));
    ASSERT_TRUE(
        job_->SaveUntil([&] { return job_->Newest(v1::Tier::kDisk).has_value(); }, kTimeout))
        << Evidence();
  }
  Cluster::CliResult Cli(const std::vector<std::string>& arguments) {
    auto result = cluster_->Cli(arguments);
    EXPECT_TRUE(result.has_value());
    return result.value_or(Cluster::CliResult{});
  }
  json CliJson(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"-o", "json"});
    return json::parse(Cli(arguments).out, nullptr, /*allow_exceptions=*/false);
  }
  /// Returns the versions of the job that are committed on disk, newest first.
  std::vector<std::string> VersionsOnDisk() {
    const json document = CliJson({"versions", "saved"});
    std::vector<std::string> versions;
    if (!document.is_object() || !document.contains("versions")) return versions;
    for (const auto& version : document["versions"]) {
      const bool on_disk = version["tiers"].dump().find("disk") != std::string::npos;
      if (version["state"] == "committed" && on_disk) versions.push_back(version["version"]);
    }
    return versions;
  }
  int AliveNodes() {
    const json status = CliJson({"status"});
    if (!status.is_object() || !status.contains("nodes")) return 0;
    return static_cast<int>(std::count_if(status["nodes"].begin(), status["nodes"].end(),
                                          [](const auto& node) { return node["alive"] == true; }));
  }
  bool AwaitNodes() {
    return WaitUntil([&] { return AliveNodes() == kRanks; }, kTimeout);
  }
  /// Loses the coordinator's store, and starts the coordinator with the backup in `folder`.
  void ReplaceTheStoreBy(const std::string& folder) {
    cluster_->coordinator().Kill();
    fs::remove_all(cluster_->root() + "/coordinator");
    fs::copy(folder, cluster_->root() + "/coordinator", fs::copy_options::recursive);
    ASSERT_TRUE(cluster_->StartCoordinator().ok());
    ASSERT_TRUE(AwaitNodes()) << Evidence();
  }
  /// Expects the bytes that the nodes' files have.
  void ExpectRestorable(const std::string& version) {
    const std::string out = cluster_->root() + "/out-" + version;
    const auto result = Cli({"restore", "saved", "--to", out, "--version", version, "--yes"});
    ASSERT_EQ(result.exit_code, 0) << result.out << result.errors;
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string original = ReadAll(fmt::format("{}/saved/v{}/rank-{}.safetensors",
                                                       cluster_->DataDirs(rank)[0], version, rank));
      ASSERT_GT(original.size(), words_ * 8) << version;
      const std::string name = fmt::format("rank-{:05}-of-{:05}.safetensors", rank, kRanks);
      EXPECT_TRUE(ReadAll(out + "/" + name) == original) << version << " " << name << " differs";
    }
  }
  /// Returns the names in the test's folder that begin with "backup".
  std::vector<std::string> Backups() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(cluster_->root())) {
      const std::string name = entry.path().filename();
      if (name.starts_with("backup")) names.push_back(name);
    }
    return names;
  }
  /// Starts the CLI with `prefix` from now on.
  void RunCliWith(std::vector<std::string> prefix) {
    options_.cli_command = std::move(prefix);
    cluster_->Reconfigure(options_);
  }
  std::string folder() const { return cluster_->root() + "/backup"; }
};

TEST_F(BackupTest, ABackupOfARunningJobBringsItsVersionsBack) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const std::vector<std::string> before = VersionsOnDisk();
  ASSERT_FALSE(before.empty()) << Evidence();
  // The job saves every step before, during and after the backup.
  std::atomic<bool> saving{true};
  std::thread saves([&] {
    while (saving) {
      job_->Save();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  const auto made = Cli({"backup", folder(), "-o", "json"});
  const uint64_t during = job_->step();
  const bool more =
      WaitUntil([&] { return VersionsOnDisk().size() > before.size() + 10; }, kTimeout);
  saving = false;
  saves.join();
  ASSERT_EQ(made.exit_code, 0) << made.errors;
  const json report = json::parse(made.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(report.is_object()) << made.out;
  EXPECT_GT(report["records"], 4);
  ASSERT_TRUE(more) << Evidence();
  EXPECT_GT(job_->step(), during);
  EXPECT_THAT(Cli({"audit"}).out, HasSubstr("Backup"));
  const VersionId newest = job_->Newest(v1::Tier::kDisk).value_or(VersionId{});
  const std::vector<std::string> committed = VersionsOnDisk();
  ASSERT_THAT(committed, Contains(ToString(newest))) << Evidence();
  job_->Close();

  ASSERT_NO_FATAL_FAILURE(ReplaceTheStoreBy(folder()));
  const std::vector<std::string> restored = VersionsOnDisk();
  ASSERT_THAT(restored, Contains(before.front())) << "committed before the backup";
  ASSERT_NO_FATAL_FAILURE(ExpectRestorable(restored.front()));
  // The backup is older than the newest versions, which the nodes keep until they are adopted.
  EXPECT_THAT(Cli({"status"}).out, HasSubstr("OTHER_LIFE"));
  const auto adopted = Cli({"adopt", "saved"});
  ASSERT_EQ(adopted.exit_code, 0) << adopted.out << adopted.errors;
  // Every version that the lost store had committed on disk is back, and not only the newest.
  std::vector<std::string> missing;
  const auto all_are_back = [&] {
    const std::vector<std::string> back = VersionsOnDisk();
    missing.clear();
    std::ranges::copy_if(committed, std::back_inserter(missing), [&](const std::string& version) {
      return std::ranges::find(back, version) == back.end();
    });
    return missing.empty();
  };
  ASSERT_TRUE(WaitUntil(all_are_back, kTimeout)) << testing::PrintToString(missing) << '\n'
                                                 << adopted.out << Evidence();
  for (size_t i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(ExpectRestorable(committed[i]));
  ExpectBack(newest, {});
}

TEST_F(BackupTest, AnInterruptedBackupHasNotItsName) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  // The coordinator dies while it sends.
  cluster_->coordinator().Kill();
  ASSERT_TRUE(cluster_->StartCoordinator("coordinator.mid_backup").ok());
  ASSERT_TRUE(AwaitNodes()) << Evidence();
  auto result = Cli({"backup", folder()});
  EXPECT_NE(result.exit_code, 0) << result.out;
  EXPECT_TRUE(cluster_->coordinator().WaitFor(kTimeout)) << "no backup was being sent";
  EXPECT_NE(result.errors, "");
  EXPECT_THAT(Backups(), testing::IsEmpty());
  ASSERT_TRUE(cluster_->StartCoordinator().ok());
  ASSERT_TRUE(AwaitNodes()) << Evidence();
  // The command dies when everything is written.
  RunCliWith({"/usr/bin/env", "HOLDFAST_CRASH=backup.before_rename"});
  result = Cli({"backup", folder()});
  EXPECT_NE(result.exit_code, 0) << result.out;
  RunCliWith({});
  ASSERT_THAT(Backups(), testing::ElementsAre(testing::StartsWith("backup.unfinished-")))
      << result.errors;
  // The remains are no obstacle.
  result = Cli({"backup", folder()});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(Backups(), Contains("backup"));
  // A backup is never replaced.
  const std::string identity = ReadAll(folder() + "/metadata/CURRENT");
  result = Cli({"backup", folder()});
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.errors, HasSubstr("give each backup a separate folder"));
  EXPECT_EQ(ReadAll(folder() + "/metadata/CURRENT"), identity);
}

TEST_F(BackupTest, AFullDiskLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_TRUE(job_->SaveUntil([&] { return job_->step() >= 80; }, kTimeout));
  // No file can grow beyond 2 KiB, as on a disk that becomes full.
  RunCliWith({"/bin/sh", "-c", R"(trap "" XFSZ; ulimit -f 4; exec "$0" "$@")"});
  auto result = Cli({"backup", folder()});
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.errors, HasSubstr(folder() + ".unfinished-"));
  EXPECT_THAT(Backups(), testing::IsEmpty());
  RunCliWith({});
  result = Cli({"backup", folder()});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
}

}  // namespace
}  // namespace holdfast::local
