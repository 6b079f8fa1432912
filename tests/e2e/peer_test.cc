// Real losses at the tier peer. For every set of up to m nodes the agents, keepers, trainers and
// disks are lost, and empty machines replace them. All ranks restore a version at least as new as
// the committed one, the ranks of the other nodes from memory. After one more loss, the missing
// shards are named, and an older version is restored from disk.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "testing/cluster/observer.h"
#include "testing/cluster/training.h"
#include "tests/e2e/cluster_test.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
constexpr milliseconds kTimeout(120'000);

std::vector<std::vector<int>> Subsets(int n, int size) {
  std::vector<std::vector<int>> all;
  std::vector<bool> pick(static_cast<size_t>(n), false);
  std::fill(pick.begin(), pick.begin() + size, true);
  do {
    std::vector<int> subset;
    for (int i = 0; i < n; ++i) {
      if (pick[static_cast<size_t>(i)]) subset.push_back(i);
    }
    all.push_back(subset);
  } while (std::prev_permutation(pick.begin(), pick.end()));
  return all;
}

class PeerTest : public ClusterTest {
 protected:
  void SetUp() override { options_.arena_bytes = 64ULL << 20; }

  void StartWith(int nodes, int parity, int disk_every) {
    options_.nodes = nodes;
    options_.disk_every = disk_every;
    options_.coordinator_settings = {fmt::format("peers.group_nodes={}", nodes),
                                     fmt::format("peers.parity={}", parity)};
    ASSERT_NO_FATAL_FAILURE(StartServers());
    TrainingOptions training;
    training.world = nodes;
    training.steps = 100'000;
    training.params = 8'000;
    training.step_sleep_ms = 20;
    training_.emplace(&*cluster_, training);
    ASSERT_TRUE(training_->Start().ok());
  }

  /// Waits for a version of the current start of the job at `tier`.
  VersionId AwaitOwn(Tier tier) {
    auto version = AwaitCommit(*cluster_, "charlm", tier, before_, kTimeout);
    EXPECT_TRUE(version.has_value()) << version.error().ToString() << training_->LogTail();
    return version.value_or(VersionId{});
  }

  /// Destroys the nodes with everything on them, ends all trainers, and starts empty nodes.
  void Lose(const std::vector<int>& nodes) {
    for (int node : nodes) {
      training_->KillRank(node);
      cluster_->DestroyNode(node);
    }
    training_->KillAll();
    auto summary = Observe(*cluster_, "charlm");
    ASSERT_TRUE(summary.has_value()) << summary.error().ToString();
    before_ = summary->memory_committed;
    for (int node : nodes) ASSERT_TRUE(cluster_->StartAgent(node).ok());
    for (int node : nodes) {
      Status up = cluster_->AwaitAgent(node);
      ASSERT_TRUE(up.ok()) << up.ToString();
    }
  }

  /// The agents' log lines about shards and errors, for failure messages.
  std::string Evidence() const {
    std::string text;
    for (int node = 0; node < options_.nodes; ++node) {
      std::ifstream log(cluster_->AgentLog(node));
      std::vector<std::string> lines;
      for (std::string line; std::getline(log, line);) {
        if (line.find(" I ") == std::string::npos || line.find("Shard") != std::string::npos) {
          lines.push_back(line);
        }
      }
      const size_t first = lines.size() > 12 ? lines.size() - 12 : 0;
      for (size_t i = first; i < lines.size(); ++i) text += lines[i] + "\n";
    }
    const std::string coordinator = ReadAll(cluster_->CoordinatorLog());
    constexpr size_t kTail = 12'000;
    text += coordinator.substr(coordinator.size() > kTail ? coordinator.size() - kTail : 0);
    return text;
  }

  std::vector<Restored> StartAgain() {
    EXPECT_TRUE(training_->Start().ok());
    WaitUntil([&] { return !training_->restored().empty() || training_->AnyEnded(); }, kTimeout);
    return training_->restored();
  }

  std::optional<Training> training_;
  std::optional<VersionId> before_;
};

TEST_F(PeerTest, EverySetOfUpToMLostNodesIsRestored) {
  const char* shape = std::getenv("HOLDFAST_GROUP");
  if (shape == nullptr) GTEST_SKIP() << "set HOLDFAST_GROUP=NODES,PARITY,N to test every N-th set";
  int nodes = 0;
  int parity = 0;
  int every = 1;
  ASSERT_GE(std::sscanf(shape, "%d,%d,%d", &nodes, &parity, &every), 2);
  StartWith(nodes, parity, /*disk_every=*/1'000'000);
  std::vector<std::vector<int>> losses;
  for (int size = 1; size <= parity; ++size) {
    for (auto& subset : Subsets(nodes, size)) losses.push_back(std::move(subset));
  }
  for (size_t i = 0; i < losses.size(); i += static_cast<size_t>(every)) {
    SCOPED_TRACE(::testing::PrintToString(losses[i]));
    const VersionId promised = AwaitOwn(Tier::kPeer);
    ASSERT_NO_FATAL_FAILURE(Lose(losses[i]));
    const std::vector<Restored> restored = StartAgain();
    ASSERT_EQ(restored.size(), static_cast<size_t>(nodes)) << training_->LogTail() << Evidence();
    for (const Restored& rank : restored) {
      const bool lost = std::count(losses[i].begin(), losses[i].end(), rank.rank) > 0;
      EXPECT_GE(rank.step, promised.step.value);
      EXPECT_EQ(rank.step, restored[0].step);
      EXPECT_EQ(rank.tier, lost ? "peer" : "memory") << "rank " << rank.rank;
    }
    std::printf("lost %s: all ranks at step %lu\n", ::testing::PrintToString(losses[i]).c_str(),
                static_cast<unsigned long>(restored[0].step));
  }
}

TEST_F(PeerTest, OneLossTooManyIsNamedAndTheDiskVersionIsRestored) {
  if (std::getenv("HOLDFAST_GROUP") != nullptr) GTEST_SKIP() << "HOLDFAST_GROUP is set";
  StartWith(4, 1, /*disk_every=*/50);
  const VersionId durable = AwaitOwn(Tier::kDisk);
  before_ = durable;
  const VersionId newest = AwaitOwn(Tier::kPeer);
  training_->KillAll();
  // Two nodes lose their memory, but not their disks.
  for (int node : {1, 2}) {
    cluster_->agent(node).Kill();
    cluster_->KillKeeper(node);
  }
  for (int node : {1, 2}) ASSERT_TRUE(cluster_->StartAgent(node).ok());
  for (int node : {1, 2}) ASSERT_TRUE(cluster_->AwaitAgent(node).ok());
  auto versions = cluster_->Cli({"versions", "charlm", "-o", "json"});
  ASSERT_TRUE(versions.has_value());
  EXPECT_EQ(versions->exit_code, 0) << versions->errors;
  EXPECT_THAT(versions->out,
              ::testing::ContainsRegex("lacks 2: n1 .rank-1, parity-1., n2 .rank-2, parity-2."))
      << ToString(newest);
  const std::vector<Restored> restored = StartAgain();
  ASSERT_EQ(restored.size(), 4U) << training_->LogTail();
  for (const Restored& rank : restored) {
    EXPECT_GE(rank.step, durable.step.value);
    EXPECT_EQ(rank.step, restored[0].step);
  }
  // From its own disk, unless the group could complete a newer version that was being written.
  EXPECT_EQ(restored[1].tier, restored[1].step == durable.step.value ? "disk" : "peer");
}

}  // namespace
}  // namespace holdfast::local
