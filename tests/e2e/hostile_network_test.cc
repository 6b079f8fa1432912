// Agents over a network that corrupts or drops data. No wrong byte is ever accepted, an isolated
// node commits nothing, and versions are protected again after the network heals.

#include <csignal>
#include <cstdlib>

#include "tests/agent/peers/faulty_proxy.h"
#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {
using agent::FaultyProxy;
using agent::NetworkFault;
using std::chrono::milliseconds;

class HostileNetworkTest : public ProtectedCluster {
 protected:
  static constexpr int kNodes = 4;

  void SetUp() override {
    ProtectedCluster::SetUp();
    options_.agent_settings.push_back("peers.build_timeout_ms=1500");
  }
  void TearDown() override {
    ProtectedCluster::TearDown();
    proxies_.clear();
    to_coordinator_.reset();
  }

  /// Puts a proxy in front of each node's peer address.
  void ProxyPeers() {
    for (int node = 0; node < kNodes; ++node) {
      const std::string socket = options_.root + "/n" + std::to_string(node) + "/p.sock";
      auto& proxy = proxies_.emplace_back(
          std::make_unique<FaultyProxy>("unix:" + socket, static_cast<uint64_t>(node) + 1));
      proxy->SetFaulty(false);
      options_.agent_settings_of[node].push_back("peers.advertise=" + proxy->address());
    }
  }
  /// Makes the node reach the coordinator through a proxy.
  void ProxyCoordinator(int node) {
    to_coordinator_ = std::make_unique<FaultyProxy>("unix:" + options_.root + "/c.sock", 9);
    to_coordinator_->SetFaulty(false);
    options_.agent_settings_of[node].push_back("coordinator=" + to_coordinator_->address());
    options_.agent_settings_of[node].push_back("insecure_loopback=true");
  }
  void SetFaults(const std::vector<NetworkFault>& faults, uint64_t chunks_between) {
    for (auto& proxy : proxies_) proxy->SetFaults(faults, chunks_between);
  }
  uint64_t Faults() const {
    uint64_t faults = 0;
    for (const auto& proxy : proxies_) faults += proxy->faults();
    return faults;
  }

  std::vector<std::unique_ptr<FaultyProxy>> proxies_;
  std::unique_ptr<FaultyProxy> to_coordinator_;
};

/// The faults of the network in one phase of the test.
struct Harm {
  const char* name;
  std::vector<NetworkFault> faults;
  bool stalls = false;  // lost bytes cause long waits, so the rebuild runs without faults
};

const std::vector<Harm>& Harms() {
  // Each fault in one phase, or the same faults in fewer phases.
  static const std::vector<Harm> kEach = {
      {"loses", {NetworkFault::kLose}, true}, {"thins", {NetworkFault::kThin}, true},
      {"cuts off", {NetworkFault::kCutOff}},  {"doubles", {NetworkFault::kDouble}},
      {"flips", {NetworkFault::kFlip}},       {"holds", {NetworkFault::kHold}},
      {"breaks", {NetworkFault::kBreak}},     {"reorders", {NetworkFault::kReorder}}};
  static const std::vector<Harm> kMixed = {
      {"changes", {NetworkFault::kFlip, NetworkFault::kReorder, NetworkFault::kDouble}},
      {"withholds", {NetworkFault::kLose, NetworkFault::kThin, NetworkFault::kHold}, true},
      {"ends", {NetworkFault::kCutOff, NetworkFault::kBreak}}};
  return std::getenv("HOLDFAST_EVERY_FAULT") != nullptr ? kEach : kMixed;
}

TEST_F(HostileNetworkTest, NoWrongByteIsEverAccepted) {
  constexpr uint64_t kChunksBetween = 150;  // about one fault per version
  constexpr uint64_t kChunksBetweenInRebuild = 500;
  constexpr uint64_t kFaultsMin = 15;
  ProxyPeers();
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  VersionId promised = SaveUntilProtected();
  int victim = 0;
  for (const Harm& harm : Harms()) {
    SCOPED_TRACE(std::string("a network that ") + harm.name);
    const uint64_t before = Faults();
    SetFaults(harm.faults, kChunksBetween);
    EXPECT_TRUE(job_->SaveUntil([&] { return Faults() - before >= kFaultsMin; }, kTimeout));
    promised = job_->Newest(v1::Tier::kPeer).value_or(promised);
    // A rebuild has only a few attempts, and would wait long for lost bytes.
    SetFaults(harm.stalls ? std::vector<NetworkFault>{} : harm.faults, kChunksBetweenInRebuild);
    job_->Close();
    ASSERT_NO_FATAL_FAILURE(Replace(victim));
    const auto restored = ExpectBack(promised, {victim});
    std::printf("%s: %lu faults, node %d lost, all ranks at %s\n", harm.name, Faults() - before,
                victim, ToString(restored.version).c_str());
    SetFaults({}, 1);
    promised = SaveUntilProtected(restored.version);
    victim = (victim + 1) % kNodes;
  }
  for (int node = 0; node < kNodes; ++node) {
    EXPECT_THAT(AgentLog(node), ::testing::Not(::testing::HasSubstr(" F "))) << "node " << node;
  }
}

/// A node that neither the coordinator nor any peer can reach.
TEST_F(HostileNetworkTest, AnIsolatedNodeCommitsNothing) {
  constexpr int kIsolated = 3;
  ProxyPeers();
  ProxyCoordinator(kIsolated);
  options_.coordinator_settings = {"node_lease_ms=1500"};
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  SaveUntilProtected();

  proxies_[kIsolated]->SetCut(true);
  to_coordinator_->SetCut(true);
  const uint64_t first = job_->Save();
  const auto cut_at = std::chrono::steady_clock::now();
  job_->SaveUntil([&] { return std::chrono::steady_clock::now() - cut_at > milliseconds(3500); },
                  kTimeout);
  for (v1::Tier tier : {v1::Tier::kMemory, v1::Tier::kPeer}) {
    for (int rank = 0; rank < kNodes; ++rank) {
      const auto newest = job_->Newest(tier, rank);
      ASSERT_TRUE(newest.has_value());
      EXPECT_LT(newest->step.value, first) << "rank " << rank << " at " << v1::ToString(tier);
    }
  }
  const auto status = cluster_->Cli({"status"});
  ASSERT_TRUE(status.has_value());
  EXPECT_THAT(status->out, ::testing::HasSubstr("NODE_DOWN node n3"));

  proxies_[kIsolated]->SetCut(false);
  to_coordinator_->SetCut(false);
  const VersionId healed = SaveUntilProtected(VersionId{Incarnation{1}, Step{first}});
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(Replace(kIsolated));
  ExpectBack(healed, {kIsolated});
}

/// Nodes that reach the coordinator but not each other commit versions at memory, and at no other
/// tier.
TEST_F(HostileNetworkTest, WithoutPeersVersionsAreCommittedInMemoryOnly) {
  ProxyPeers();
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  SaveUntilProtected();
  for (auto& proxy : proxies_) proxy->SetCut(true);
  const uint64_t first = job_->Save();
  EXPECT_TRUE(job_->SaveUntil(
      [&] {
        const auto newest = job_->Newest(v1::Tier::kMemory);
        return newest && newest->step.value >= first + 5;
      },
      kTimeout))
      << "memory waits for peers\n"
      << Evidence();
  EXPECT_LT(job_->Newest(v1::Tier::kPeer)->step.value, first);
  for (auto& proxy : proxies_) proxy->SetCut(false);
  SaveUntilProtected(VersionId{Incarnation{1}, Step{first}});
}

}  // namespace
}  // namespace holdfast::local
