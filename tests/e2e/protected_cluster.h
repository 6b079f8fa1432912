#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/cluster_test.h"
#include "tests/e2e/saving_job.h"

namespace holdfast::local {

/// A cluster whose nodes keep parity for each other, and a job that saves in it.
class ProtectedCluster : public ClusterTest {
 protected:
  static constexpr std::chrono::milliseconds kTimeout{60'000};

  void SetUp() override {
    options_.arena_bytes = 64ULL << 20;
    if (std::getenv("HOLDFAST_KEEP") != nullptr) {
      options_.agent_settings = options_.coordinator_settings = {"log_level=debug"};
    }
    options_.disk_every = 1'000'000;  // so that restores come from memory
  }
  void TearDown() override {
    job_.reset();
    cluster_.reset();
  }

  /// Starts one rank on each of the first `ranks` nodes, in one parity group with `parity`.
  /// `spares` more nodes are configured, without a running agent.
  void Start(int ranks, int parity, int spares = 0) {
    options_.nodes = ranks + spares;
    options_.coordinator_settings.push_back("peers.group_nodes=" + std::to_string(ranks));
    options_.coordinator_settings.push_back("peers.parity=" + std::to_string(parity));
    cluster_.emplace(options_);
    std::filesystem::create_directories(options_.root);
    ASSERT_TRUE(cluster_->StartCoordinator().ok());
    ASSERT_TRUE(cluster_->StartRelays().ok());
    for (int node = 0; node < ranks; ++node) ASSERT_TRUE(cluster_->StartAgent(node).ok());
    for (int node = 0; node < ranks; ++node) AwaitAgent(node);
    job_.emplace(*cluster_, ranks, words_);
    const Status opened = job_->Open();
    ASSERT_TRUE(opened.ok()) << opened.ToString();
  }
  void AwaitAgent(int node) {
    const Status up = cluster_->AwaitAgent(node);
    ASSERT_TRUE(up.ok()) << up.ToString();
  }
  /// Destroys the node with all its data, and starts an empty one in its place.
  void Replace(int node) {
    cluster_->DestroyNode(node);
    ASSERT_TRUE(cluster_->StartAgent(node).ok());
    AwaitAgent(node);
  }

  /// Saves until a version newer than `than` is protected. Returns the newest protected version.
  VersionId SaveUntilProtected(std::optional<VersionId> than = std::nullopt) {
    const bool protected_ = job_->SaveUntil(
        [&] {
          const auto newest = job_->Newest(v1::Tier::kPeer);
          return newest && (!than || *newest > *than);
        },
        kTimeout);
    EXPECT_TRUE(protected_) << "nothing was committed at peer\n" << Evidence();
    return job_->Newest(v1::Tier::kPeer).value_or(VersionId{});
  }

  /// Restarts the job and expects every rank to restore its bytes of a version at least as new as
  /// `promised`, the ranks in `lost` by decoding. Runs `meanwhile` concurrently on this thread,
  /// since processes end with the thread that started them.
  SavingJob::Restored ExpectBack(
      VersionId promised, const std::vector<int>& lost, const std::vector<int>& nodes = {},
      const std::function<void()>& meanwhile = [] {}) {
    Result<SavingJob::Restored> restored = Fail(UnavailableError("not tried"));
    std::thread ranks([&] {
      const Status opened = job_->Open(nodes);
      restored = opened.ok() ? job_->Restore(kTimeout) : Fail(opened);
    });
    meanwhile();
    ranks.join();
    EXPECT_TRUE(restored.has_value()) << restored.error().ToString() << "\n" << Evidence();
    if (!restored) return {};
    EXPECT_GE(restored->version, promised);
    for (int rank : lost) {
      EXPECT_EQ(restored->tiers[static_cast<size_t>(rank)], v1::Tier::kPeer) << "rank " << rank;
    }
    return *restored;
  }

  std::string AgentLog(int node) const {
    std::ifstream file(cluster_->AgentLog(node));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  /// The output of status commands and the ends of the logs, for failure messages.
  std::string Evidence() const {
    constexpr size_t kTail = 1500;
    std::string text;
    for (const char* what : {"status", "versions", "nodes"}) {
      const auto shown = cluster_->Cli({what, "-o", "wide"});
      if (shown) text += shown->out + shown->errors + "\n";
    }
    for (int node = 0; node < options_.nodes; ++node) {
      const std::string log = AgentLog(node);
      text += "--- n" + std::to_string(node) + "\n";
      text += log.substr(log.size() > kTail ? log.size() - kTail : 0);
    }
    return text;
  }

  uint64_t words_ = 256 << 10;  // of eight bytes, saved by each rank
  std::optional<SavingJob> job_;
};

}  // namespace holdfast::local
