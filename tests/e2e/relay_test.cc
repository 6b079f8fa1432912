// Agents behind two relays, with a job that saves every step. Relays and the coordinator are killed
// and stopped: no version is lost, no node counts as lost, and no rank is started again.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kNodes = 4;
constexpr int kRelays = 2;
constexpr milliseconds kLease(3'000);

class RelayTest : public ProtectedCluster {
 protected:
  /// `return_s`: see relay_return_s of the agents.
  void StartAll(int return_s = 0) {
    words_ = 4 << 10;
    options_.agent_settings.push_back(fmt::format("relay_return_s={}", return_s));
    options_.nodes = kNodes;
    options_.relays = kRelays;
    options_.coordinator_settings.insert(
        options_.coordinator_settings.end(),
        {"peers.enabled=false", fmt::format("node_lease_ms={}", kLease.count())});
    cluster_.emplace(options_);
    const Status started = cluster_->Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
    job_.emplace(*cluster_, kNodes, words_);
    const Status opened = job_->Open();
    ASSERT_TRUE(opened.ok()) << opened.ToString() << Evidence();
    SaveUntilNewer(VersionId{});
    for (int node = 0; node < kNodes; ++node) EXPECT_EQ(RelayOf(node), node % kRelays);
  }

  VersionId Newest() { return job_->Newest(v1::Tier::kMemory).value_or(VersionId{}); }
  /// Saves until a version newer than `than` is committed. Returns how long that took.
  milliseconds SaveUntilNewer(VersionId than) {
    const auto begin = steady_clock::now();
    EXPECT_TRUE(job_->SaveUntil([&] { return Newest() > than; }, kTimeout))
        << "nothing newer than " << ToString(than) << Evidence() << Logs();
    return std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin);
  }
  /// Saves until every rank knows a version newer than `than`.
  void SaveUntilAllHaveNewer(VersionId than) {
    const bool all = job_->SaveUntil(
        [&] {
          for (int rank = 0; rank < kNodes; ++rank) {
            const auto newest = job_->Newest(v1::Tier::kMemory, rank);
            if (!newest || *newest <= than) return false;
          }
          return true;
        },
        kTimeout);
    EXPECT_TRUE(all) << Evidence() << Logs();
  }
  /// Returns the relay through which the node attached last, as the coordinator logs it; -1: none.
  int RelayOf(int node) const {
    const std::string log = ReadAll(cluster_->CoordinatorLog());
    const size_t at = log.rfind(fmt::format(" NodeAttaching node=n{} ", node));
    if (at == std::string::npos) return -1;
    const std::string line = log.substr(at, log.find('\n', at) - at);
    for (int relay = 0; relay < kRelays; ++relay) {
      if (line.find(cluster_->RelayEndpoint(relay)) != std::string::npos) return relay;
    }
    return -1;
  }
  std::string Logs() const {
    std::string text = "--- coordinator\n" + Tail(cluster_->CoordinatorLog());
    for (int relay = 0; relay < kRelays; ++relay) {
      text += fmt::format("--- relay {}\n", relay) + Tail(cluster_->RelayLog(relay));
    }
    return text;
  }
  static std::string Tail(const std::string& path) {
    const std::string log = ReadAll(path);
    return log.substr(log.size() - std::min<size_t>(log.size(), 4'000));
  }
  /// No node was lost, and the job was not started again.
  void ExpectUndisturbed() {
    EXPECT_THAT(ReadAll(cluster_->CoordinatorLog()), Not(HasSubstr("node lost"))) << Logs();
    EXPECT_EQ(Newest().incarnation.value, 1U);
  }
  /// Restarts the job: all ranks get the bytes of the newest version, which SavingJob compares.
  void ExpectRestored() {
    const VersionId promised = Newest();
    const SavingJob::Restored restored = ExpectBack(promised, {});
    for (const v1::Tier tier : restored.tiers) EXPECT_EQ(tier, v1::Tier::kMemory);
  }
};

TEST_F(RelayTest, ALostRelayCostsNoVersionAndNoNode) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  cluster_->relay(0).Kill();
  const VersionId before = Newest();
  const milliseconds killed = SaveUntilNewer(before);
  EXPECT_LT(killed, kLease) << Logs();
  SaveUntilAllHaveNewer(before);
  for (int node = 0; node < kNodes; ++node) EXPECT_EQ(RelayOf(node), 1) << "node " << node;
  ExpectUndisturbed();

  // All agents are behind the other one now. It is stopped: its connections stay open.
  ASSERT_TRUE(cluster_->StartRelay(0).ok());
  const VersionId earlier = Newest();
  cluster_->relay(1).Signal(SIGSTOP);
  const milliseconds stopped = SaveUntilNewer(earlier);
  EXPECT_LT(stopped, kLease + milliseconds(2'000)) << Logs();
  SaveUntilAllHaveNewer(earlier);
  for (int node = 0; node < kNodes; ++node) EXPECT_NE(RelayOf(node), 1) << "node " << node;
  ExpectUndisturbed();

  // The messages that the relay still has are of streams that have ended.
  cluster_->relay(1).Signal(SIGCONT);
  SaveUntilAllHaveNewer(Newest());
  ExpectUndisturbed();
  fmt::print("relay: commit {} ms after SIGKILL, {} ms after SIGSTOP\n", killed.count(),
             stopped.count());
  ExpectRestored();
}

TEST_F(RelayTest, AgentsStayWithTheirRelayWhenTheCoordinatorIsReplaced) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  cluster_->coordinator().Kill();
  const VersionId before = Newest();
  job_->SaveUntil(
      [until = steady_clock::now() + milliseconds(500)] { return steady_clock::now() > until; },
      kTimeout);
  ASSERT_TRUE(cluster_->StartCoordinator().ok());
  SaveUntilAllHaveNewer(before);
  for (int node = 0; node < kNodes; ++node) {
    EXPECT_EQ(RelayOf(node), node % kRelays) << "node " << node << Logs();
  }
  ExpectUndisturbed();

  const VersionId earlier = Newest();
  cluster_->coordinator().Signal(SIGSTOP);
  job_->SaveUntil(
      [until = steady_clock::now() + milliseconds(5'000)] { return steady_clock::now() > until; },
      kTimeout);
  cluster_->coordinator().Signal(SIGCONT);
  SaveUntilAllHaveNewer(earlier);
  ExpectUndisturbed();
  ExpectRestored();
}

// Each agent returns to the relay that it began with, and a relay that only listens takes none.
TEST_F(RelayTest, AgentsReturnToARelayThatServesAgain) {
  ASSERT_NO_FATAL_FAILURE(StartAll(/*return_s=*/1));
  const auto all_at = [&](const std::function<int(int)>& wanted) {
    for (int node = 0; node < kNodes; ++node) {
      if (RelayOf(node) != wanted(node)) return false;
    }
    return true;
  };
  for (int relay = 0; relay < kRelays; ++relay) cluster_->relay(relay).Kill();
  SaveUntilAllHaveNewer(Newest());
  ASSERT_TRUE(WaitUntil([&] { return all_at([](int) { return -1; }); }, kTimeout)) << Logs();

  const VersionId before = Newest();
  ASSERT_TRUE(cluster_->StartRelay(1).ok());
  EXPECT_TRUE(job_->SaveUntil([&] { return all_at([](int) { return 1; }); }, kTimeout)) << Logs();
  ASSERT_TRUE(cluster_->StartRelay(0).ok());
  EXPECT_TRUE(
      job_->SaveUntil([&] { return all_at([](int node) { return node % kRelays; }); }, kTimeout))
      << Logs();
  SaveUntilAllHaveNewer(before);
  // They stay there.
  const auto attached = [&] {
    const std::string log = ReadAll(cluster_->CoordinatorLog());
    size_t count = 0;
    for (size_t at = 0; (at = log.find(" NodeAttaching ", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  const size_t count = attached();
  const auto until = steady_clock::now() + milliseconds(3'000);
  job_->SaveUntil([&] { return steady_clock::now() > until; }, kTimeout);
  EXPECT_EQ(attached(), count) << Logs();
  ExpectUndisturbed();
  ExpectRestored();
}

// Agents move from one relay to the other and back while the job is started again and again.
TEST_F(RelayTest, RelaysThatAreLostAndReturnDisturbNoJoin) {
  ASSERT_NO_FATAL_FAILURE(StartAll(/*return_s=*/1));
  SaveUntilAllHaveNewer(VersionId{});
  const VersionId promised = Newest();
  const auto at = [&](int node, int relay) { return RelayOf(node) == relay; };
  // Starts the job until `moved`, and at least twice.
  const auto start_until = [&](const char* what, const std::function<bool()>& moved) {
    const auto deadline = steady_clock::now() + kTimeout;
    int starts = 0;
    while (starts < 2 || !moved()) {
      ASSERT_LT(steady_clock::now(), deadline) << what << Logs();
      job_->Close();
      ExpectBack(promised, {});
      ASSERT_FALSE(HasFailure()) << what << Logs();
      ++starts;
    }
    fmt::print("relay: {} starts of the job: {}\n", starts, what);
  };
  cluster_->relay(0).Kill();
  ASSERT_NO_FATAL_FAILURE(
      start_until("lost", [&] { return at(0, 1) && at(1, 1) && at(2, 1) && at(3, 1); }));
  ASSERT_TRUE(cluster_->StartRelay(0).ok());
  ASSERT_NO_FATAL_FAILURE(
      start_until("returned", [&] { return at(0, 0) && at(1, 1) && at(2, 0) && at(3, 1); }));
  SaveUntilAllHaveNewer(Newest());
  EXPECT_THAT(ReadAll(cluster_->CoordinatorLog()), Not(HasSubstr("node lost"))) << Logs();
  ExpectRestored();
}

// The last address of each agent is the coordinator's own.
TEST_F(RelayTest, WithoutAnyRelayAgentsGoToTheCoordinator) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  const VersionId before = Newest();
  for (int relay = 0; relay < kRelays; ++relay) cluster_->relay(relay).Kill();
  SaveUntilNewer(before);
  SaveUntilAllHaveNewer(before);
  for (int node = 0; node < kNodes; ++node) EXPECT_EQ(RelayOf(node), -1) << "node " << node;
  ExpectUndisturbed();
  const auto status = cluster_->Cli({"status"});
  EXPECT_EQ(status->exit_code, 0) << status->out << status->errors;
}

}  // namespace
}  // namespace holdfast::local
