// The effect of a trainer's phase hints on the traffic between nodes. While its collectives run,
// parity traffic of all jobs on its node waits. A trainer that dies in a collective no longer
// counts.

#include <gtest/gtest.h>

#define HOLDFAST_HPP_EXPLICIT_NAMESPACE
#include <holdfast/holdfast.hpp>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "testing/cluster/training.h"
#include "tests/e2e/cluster_test.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
constexpr milliseconds kTimeout(120'000);

class PhaseTest : public ClusterTest {
 protected:
  void SetUp() override {
    options_.nodes = 2;
    options_.arena_bytes = 64ULL << 20;
    options_.disk_every = 1'000'000;
    options_.agent_settings = {"peers.yield_max_ms=60000"};
    ASSERT_NO_FATAL_FAILURE(StartServers());
    for (uint32_t rank = 0; rank < 2; ++rank) Open(rank);
    Save(1);
    ASSERT_TRUE(IsProtected(1));
  }

  void Open(uint32_t rank) {
    values_.push_back(std::vector<float>(1 << 20, static_cast<float>(rank)));
    v1::Options options;
    options.job = "job";
    options.rank = rank;
    options.world = 2;
    options.run_id = "run";
    options.socket_path = cluster_->AgentSocket(static_cast<int>(rank));
    options.connect_timeout = kTimeout;
    const v1::Tensor tensor = v1::Whole("t", values_.back(), {values_.back().size()});
    auto client = v1::Client::Open(options, {&tensor, 1});
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    clients_.push_back(std::move(*client));
  }
  void Save(uint64_t step) {
    for (v1::Client& client : clients_) {
      v1::Status saved = client.Save(step, {}, nullptr, kTimeout);
      ASSERT_TRUE(saved.ok()) << saved.ToString();
    }
    for (v1::Client& client : clients_) {
      v1::Status sealed = client.Wait(step, v1::Tier::kSealed, kTimeout);
      ASSERT_TRUE(sealed.ok()) << sealed.ToString();
    }
  }
  bool IsProtected(uint64_t step, milliseconds timeout = kTimeout) {
    v1::Status done = clients_[0].Wait(step, v1::Tier::kPeer, timeout);
    if (!done.ok()) last_ = done.ToString();
    return done.ok();
  }

  nlohmann::json Dump(int node) {
    auto answer = cluster_->Cli({"dump", "n" + std::to_string(node)});
    if (!answer) return nullptr;
    return nlohmann::json::parse(answer->out, nullptr, false).value("dump", nlohmann::json());
  }
  bool InCollective(const std::string& job) {
    const nlohmann::json dump = Dump(0);
    for (const auto& rank : dump.value("ranks", nlohmann::json::array())) {
      if (rank["job"] == job && rank["rank"] == 0) return rank["in_collective"].get<bool>();
    }
    return false;
  }
  int64_t YieldedMs() { return Dump(0)["peers"]["yielded_ms"].get<int64_t>(); }
  /// Saves `step` and waits until its parity traffic is delayed.
  void SaveThatWaits(uint64_t step) {
    const int64_t before = YieldedMs();
    ASSERT_NO_FATAL_FAILURE(Save(step));
    EXPECT_TRUE(WaitUntil([&] { return YieldedMs() > before; }, kTimeout));
    EXPECT_FALSE(IsProtected(step, milliseconds(0)));
  }

  std::string last_;
  std::vector<std::vector<float>> values_;
  std::vector<v1::Client> clients_;
};

TEST_F(PhaseTest, ParityWaitsUntilACollectiveEnds) {
  EXPECT_FALSE(InCollective("job"));
  clients_[0].BeginPhase(v1::Phase::kCollective);
  EXPECT_TRUE(InCollective("job"));
  ASSERT_NO_FATAL_FAILURE(SaveThatWaits(2));
  clients_[0].EndPhase(v1::Phase::kCollective);
  EXPECT_TRUE(IsProtected(2)) << last_;
  EXPECT_FALSE(InCollective("job"));
}

TEST_F(PhaseTest, ATrainerThatDiesInACollectiveNoLongerCounts) {
  TrainingOptions options;
  options.world = 2;
  options.steps = 100'000;
  options.params = 8'000;
  Training training(&*cluster_, options);
  ASSERT_TRUE(training.Start().ok());
  ASSERT_TRUE(training.AwaitStep(3, kTimeout)) << training.LogTail();
  // Stopping the neighbour in the ring keeps rank 0 in its collective.
  training.rank(1).Signal(SIGSTOP);
  ASSERT_TRUE(WaitUntil([&] { return InCollective("charlm"); }, kTimeout));
  ASSERT_NO_FATAL_FAILURE(SaveThatWaits(2));
  EXPECT_TRUE(InCollective("charlm"));
  training.KillAll();
  EXPECT_TRUE(WaitUntil([&] { return !InCollective("charlm"); }, milliseconds(20'000)));
  EXPECT_TRUE(IsProtected(2)) << last_;
}

}  // namespace
}  // namespace holdfast::local
