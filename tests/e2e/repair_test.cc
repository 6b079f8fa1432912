// Redundancy is restored automatically: after the replacement of a node, on the disks, and after
// corruption in memory or on disk. The next loss then verifies the claimed protection.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/fd.h"
#include "testing/cluster/observer.h"
#include "testing/cluster/training.h"
#include "tests/e2e/cluster_test.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
constexpr milliseconds kTimeout(60'000);

size_t CountIn(const std::string& path, const std::vector<std::string>& words) {
  std::ifstream file(path);
  size_t count = 0;
  for (std::string line; std::getline(file, line);) {
    count +=
        std::all_of(words.begin(), words.end(),
                    [&](const std::string& word) { return line.find(word) != std::string::npos; })
            ? 1
            : 0;
  }
  return count;
}

class RepairTest : public ClusterTest {
 protected:
  void StartCluster(int disk_every, std::vector<std::string> agent_settings = {}) {
    options_.arena_bytes = 64ULL << 20;
    options_.disk_every = disk_every;
    options_.coordinator_settings = {"peers.group_nodes=4", "peers.parity=1"};
    options_.agent_settings = std::move(agent_settings);
    StartServers();
  }
  /// Starts or restarts the job with this delay per step.
  void Train(uint64_t step_sleep_ms) {
    TrainingOptions options;
    options.steps = 100'000;
    options.params = 200'000;
    if (!training_) training_.emplace(&*cluster_, options);
    training_->SetStepSleep(step_sleep_ms);
    ASSERT_TRUE(training_->Start().ok());
  }
  /// Stops all trainers, so that no further version is saved.
  void Freeze() {
    for (int rank = 0; rank < 4; ++rank) ::kill(training_->rank(rank).pid(), SIGSTOP);
  }
  VersionId Await(Tier tier, std::optional<VersionId> than = std::nullopt) {
    auto version = AwaitCommit(*cluster_, "charlm", tier, than, kTimeout);
    EXPECT_TRUE(version.has_value()) << version.error().ToString() << training_->LogTail();
    return version.value_or(VersionId{});
  }
  std::vector<Restored> AwaitRestored() {
    WaitUntil([&] { return !training_->restored().empty() || training_->AnyEnded(); }, kTimeout);
    EXPECT_EQ(training_->restored().size(), 4U) << training_->LogTail();
    return training_->restored();
  }
  /// The failures that each version survives, as shown by the CLI.
  std::map<std::string, std::string> Survives() {
    std::map<std::string, std::string> survives;
    auto result = cluster_->Cli({"versions", "charlm", "-o", "json"});
    if (!result) return survives;
    const auto document = nlohmann::json::parse(result->out, nullptr, false);
    if (!document.contains("versions")) return survives;
    for (const auto& version : document["versions"]) {
      survives[version.value("version", "")] = version.value("survives", "");
    }
    return survives;
  }
  void DestroyAndReplace(int node) {
    cluster_->DestroyNode(node);
    ASSERT_TRUE(cluster_->StartAgent(node).ok());
    Status up = cluster_->AwaitAgent(node);
    ASSERT_TRUE(up.ok()) << up.ToString();
  }

  std::optional<Training> training_;
};

TEST_F(RepairTest, AReplacedNodeIsProtectedAgainBeforeTheNextVersion) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*disk_every=*/1'000'000));
  ASSERT_NO_FATAL_FAILURE(Train(20));
  const VersionId promised = Await(Tier::kPeer);
  training_->KillAll();
  ASSERT_NO_FATAL_FAILURE(DestroyAndReplace(1));
  // The next start only restores, so no new version is saved and protected.
  ASSERT_NO_FATAL_FAILURE(Train(3'600'000));
  const std::vector<Restored> first = AwaitRestored();
  ASSERT_EQ(first.size(), 4U);
  EXPECT_EQ(first[1].tier, "peer");
  EXPECT_GE(first[1].step, promised.step.value);
  const std::string version = fmt::format("1-{}", first[0].step);
  const bool protected_again =
      WaitUntil([&] { return Survives()[version] == "any 1 node of each group"; }, kTimeout);
  EXPECT_TRUE(protected_again) << version << " survives: " << Survives()[version];
  // The version must then survive the loss of another node.
  training_->KillAll();
  ASSERT_NO_FATAL_FAILURE(DestroyAndReplace(2));
  ASSERT_NO_FATAL_FAILURE(Train(3'600'000));
  const std::vector<Restored> second = AwaitRestored();
  ASSERT_EQ(second.size(), 4U);
  EXPECT_EQ(second[2].tier, "peer");
  for (const Restored& rank : second) EXPECT_EQ(rank.step, first[0].step);
}

TEST_F(RepairTest, TheDisksAloneSurviveAPowerCutAndALostNode) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*disk_every=*/1));
  ASSERT_NO_FATAL_FAILURE(Train(20));
  std::string safe;
  const bool found = WaitUntil(
      [&] {
        for (const auto& [version, survives] : Survives()) {
          if (survives.find("any 1 node of each group + full power cut") != std::string::npos) {
            safe = version;
          }
        }
        return !safe.empty();
      },
      kTimeout);
  ASSERT_TRUE(found);
  training_->KillAll();
  cluster_->KillEverything();
  cluster_->DestroyNode(2);
  Status started = cluster_->Start();
  ASSERT_TRUE(started.ok()) << started.ToString();
  ASSERT_NO_FATAL_FAILURE(Train(20));
  const std::vector<Restored> restored = AwaitRestored();
  ASSERT_EQ(restored.size(), 4U);
  const uint64_t safe_step = std::stoull(safe.substr(safe.find('-') + 1));
  for (const Restored& rank : restored) {
    EXPECT_GE(rank.step, safe_step);
    EXPECT_EQ(rank.step, restored[0].step);
    // A late rank may already find enough shards of its group in memory.
    if (rank.rank != 2 && rank.tier == "disk") continue;
    EXPECT_EQ(rank.tier, "peer") << "rank " << rank.rank;
  }
}

/// A sealed slot in the agent's memory, found by the first bytes of its image.
class SlotInMemory {
 public:
  /// Finds the first mapping that contains `header`.
  SlotInMemory(pid_t pid, const std::string& header)
      : memory_(::open(fmt::format("/proc/{}/mem", pid).c_str(), O_RDWR | O_CLOEXEC)) {
    std::ifstream maps(fmt::format("/proc/{}/maps", pid));
    for (std::string line; std::getline(maps, line) && address_ == 0;) {
      if (line.find("memfd:") == std::string::npos) continue;
      const uint64_t begin = std::stoull(line, nullptr, 16);
      const uint64_t end = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
      std::string bytes(end - begin, '\0');
      if (::pread(memory_.get(), bytes.data(), bytes.size(), static_cast<off_t>(begin)) !=
          static_cast<ssize_t>(bytes.size())) {
        continue;
      }
      const size_t at = bytes.find(header);
      if (at != std::string::npos) address_ = begin + at;
    }
  }
  bool found() const { return address_ != 0; }
  void Flip(uint64_t offset) {
    char byte = 0;
    const auto at = static_cast<off_t>(address_ + offset);
    ASSERT_EQ(::pread(memory_.get(), &byte, 1, at), 1);
    byte = static_cast<char>(byte ^ 4);
    ASSERT_EQ(::pwrite(memory_.get(), &byte, 1, at), 1);
  }

 private:
  UniqueFd memory_;
  uint64_t address_ = 0;
};

TEST_F(RepairTest, DecayedBytesAreFoundNamedAndRepaired) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster(/*disk_every=*/1, {"scrub.pause_ms=100", "scrub.bytes_per_s=1073741824"}));
  ASSERT_NO_FATAL_FAILURE(Train(300));
  Await(Tier::kDisk);
  Await(Tier::kPeer);
  Freeze();
  Clock::Real().SleepFor(milliseconds(500));  // until pending operations are done
  // A rank that was stopped in a collective stays in that phase, so parity runs at half its rate.
  auto summary = Observe(*cluster_, "charlm");
  const auto everywhere = [&] {
    summary = Observe(*cluster_, "charlm");
    return summary && summary->disk_committed && summary->disk_committed == summary->peer_committed;
  };
  ASSERT_TRUE(WaitUntil(everywhere, kTimeout));
  const std::string version = ToString(*summary->disk_committed);
  const auto protected_on_disk = [&] {
    return Survives()[version].find("any 1 node of each group + full power cut") !=
           std::string::npos;
  };
  ASSERT_TRUE(WaitUntil(protected_on_disk, kTimeout)) << Survives()[version];

  const auto repaired = [&](const std::string& shard, const std::string& tier) {
    return CountIn(cluster_->CoordinatorLog(), {"ShardRepaired", shard, "tier=" + tier});
  };
  // On disk: a rank's file and a node's parity file are both repaired from memory.
  for (const std::string shard : {"rank-2", "parity-2"}) {
    SCOPED_TRACE(shard);
    const std::string path =
        fmt::format("{}/charlm/v{}/{}.safetensors", cluster_->DataDirs(2)[0], version, shard);
    const std::string good = ReadAll(path);
    ASSERT_GT(good.size(), 8192U) << path;
    const size_t before = repaired(shard, "disk");
    {
      UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
      const char wrong = static_cast<char>(good[good.size() / 2] ^ 16);
      ASSERT_EQ(::pwrite(file.get(), &wrong, 1, static_cast<off_t>(good.size() / 2)), 1);
    }
    EXPECT_TRUE(WaitUntil([&] { return repaired(shard, "disk") > before; }, kTimeout));
    EXPECT_TRUE(ReadAll(path) == good);
    EXPECT_EQ(CountIn(cluster_->CoordinatorLog(), {"Finding", shard, "at disk on node n2"}), 1U);
  }
  // In memory: both are repaired from the disk of the node.
  for (const std::string shard : {"rank-2", "parity-2"}) {
    SCOPED_TRACE(shard);
    const std::string file =
        fmt::format("{}/charlm/v{}/{}.safetensors", cluster_->DataDirs(2)[0], version, shard);
    const std::string good = ReadAll(file);
    const size_t before = repaired(shard, "memory");
    SlotInMemory slot(cluster_->agent(2).pid(), good.substr(0, 512));
    ASSERT_TRUE(slot.found());
    ASSERT_NO_FATAL_FAILURE(slot.Flip(good.size() / 2));
    EXPECT_TRUE(WaitUntil([&] { return repaired(shard, "memory") > before; }, kTimeout));
  }
  auto verified = cluster_->Cli({"verify", "charlm", "--version", version, "--deep"});
  ASSERT_TRUE(verified.has_value());
  EXPECT_EQ(verified->exit_code, 0) << verified->out << verified->errors;
  // All repaired shards are usable: the memory of all nodes, and parity without node 0.
  training_->KillAll();
  ASSERT_NO_FATAL_FAILURE(DestroyAndReplace(0));
  ASSERT_NO_FATAL_FAILURE(Train(3'600'000));
  const std::vector<Restored> restored = AwaitRestored();
  ASSERT_EQ(restored.size(), 4U);
  EXPECT_EQ(restored[0].tier, "peer");
  EXPECT_EQ(restored[2].tier, "memory");
  for (const Restored& rank : restored) EXPECT_EQ(fmt::format("1-{}", rank.step), version);
}

}  // namespace
}  // namespace holdfast::local
