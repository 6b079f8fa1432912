// The memory that parity takes: two shards of m/(n−m) of a node's state, and at most 64 MiB of
// buffers. Measured by the agents and by the kernel over many versions, relative to the same job
// without peers.

#include <fmt/format.h>
#include <gtest/gtest.h>

#define HOLDFAST_HPP_EXPLICIT_NAMESPACE
#include <holdfast/holdfast.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "testing/cluster/cluster.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
constexpr milliseconds kTimeout(120'000);

constexpr int kNodes = 4;
constexpr int kParity = 1;
constexpr uint64_t kStateBytes = 96ULL << 20;  // per node
constexpr uint64_t kVersions = 30;
constexpr uint64_t kAllowed = 2 * kParity * kStateBytes / (kNodes - kParity) + (64ULL << 20);

/// The resident bytes of a process, including shared memory.
uint64_t ResidentBytes(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/smaps_rollup", pid));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("Rss:", 0) == 0) return std::stoull(line.substr(4)) * 1024;
  }
  ADD_FAILURE() << "no resident size of process " << pid;
  return 0;
}

struct Use {
  uint64_t reserved = 0;  // as reported by the agent
  uint64_t resident = 0;  // of agent and keeper
};

/// Measures the maximum memory use of any node during and after a job that saves many versions.
class Job {
 public:
  explicit Job(bool peers) : peers_(peers) {}
  ~Job() {
    clients_.clear();
    cluster_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  void Run(Use* use) {
    ASSERT_NO_FATAL_FAILURE(Start());
    for (uint64_t step = 1; step <= kVersions; ++step) {
      for (auto& client : clients_) {
        v1::Status saved = client->Save(step, {}, nullptr, kTimeout);
        ASSERT_TRUE(saved.ok()) << saved.ToString();
      }
      const v1::Tier tier = peers_ ? v1::Tier::kPeer : v1::Tier::kMemory;
      for (auto& client : clients_) {
        v1::Status safe = client->Wait(step, tier, kTimeout);
        ASSERT_TRUE(safe.ok()) << safe.ToString();
      }
      for (int node = 0; node < kNodes; ++node) {
        use->resident = std::max(use->resident, ResidentBytes(cluster_->agent(node).pid()) +
                                                    ResidentBytes(cluster_->KeeperPid(node)));
      }
    }
    for (int node = 0; node < kNodes; ++node) {
      use->reserved = std::max(use->reserved, ReservedBytes(node));
    }
  }

 private:
  void Start() {
    ClusterOptions options;
    options.root = root_ = MakeTempDir("hf").value();
    options.nodes = kNodes;
    options.arena_bytes = 8 * kStateBytes;
    options.disk_every = 1'000'000;
    options.agent_settings = {fmt::format("peers.enabled={}", peers_)};
    options.coordinator_settings = {fmt::format("peers.group_nodes={}", kNodes),
                                    fmt::format("peers.parity={}", kParity)};
    cluster_.emplace(options);
    Status started = cluster_->Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
    state_.assign(kStateBytes / sizeof(float), 1.5F);
    for (int rank = 0; rank < kNodes; ++rank) {
      v1::Options client;
      client.job = "job";
      client.rank = static_cast<uint32_t>(rank);
      client.world = kNodes;
      client.run_id = "run";
      client.socket_path = cluster_->AgentSocket(rank);
      client.connect_timeout = kTimeout;
      client.agent_timeout = kTimeout;
      const v1::Tensor tensor = v1::Whole("t", state_, {state_.size()});
      auto opened = v1::Client::Open(client, {&tensor, 1});
      ASSERT_TRUE(opened.ok()) << opened.status().ToString();
      clients_.push_back(std::make_unique<v1::Client>(std::move(*opened)));
    }
  }
  uint64_t ReservedBytes(int node) {
    auto answer = cluster_->Cli({"dump", fmt::format("n{}", node)});
    if (!answer) return 0;
    const auto dump = nlohmann::json::parse(answer->out, nullptr, false);
    return dump["dump"]["arena"]["reserved_bytes"].get<uint64_t>();
  }

  const bool peers_;
  std::string root_;
  std::optional<Cluster> cluster_;
  std::vector<float> state_;
  std::vector<std::unique_ptr<v1::Client>> clients_;
};

TEST(ParityMemoryTest, ParityTakesTwoShardsAndBoundedBuffers) {
  Use without;
  Use with;
  ASSERT_NO_FATAL_FAILURE(Job(false).Run(&without));
  ASSERT_NO_FATAL_FAILURE(Job(true).Run(&with));
  std::printf("MiB per node, without and with parity: reserved %lu, %lu; resident %lu, %lu\n",
              without.reserved >> 20, with.reserved >> 20, without.resident >> 20,
              with.resident >> 20);
  ASSERT_GT(without.reserved, 3 * kStateBytes);
  ASSERT_GT(without.resident, kStateBytes);
  // At least one parity shard, and the space for the next one.
  EXPECT_GE(with.reserved, without.reserved + 2 * kStateBytes / (kNodes - kParity));
  EXPECT_LE(with.reserved, without.reserved + kAllowed);
  EXPECT_GT(with.resident, without.resident);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // both keep more memory
  EXPECT_LE(with.resident, without.resident + kAllowed);
#endif
}

}  // namespace
}  // namespace holdfast::local
