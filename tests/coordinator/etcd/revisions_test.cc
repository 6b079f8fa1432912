// A committed version costs at most two revisions of etcd per tier, at any world size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "coordinator/server/coordinator_server.h"
#include "testing/cluster/cluster.h"
#include "testing/etcd/sim_etcd.h"
#include "tests/coordinator/server/fake_agent.h"

namespace holdfast::coord {
namespace {
constexpr uint64_t kVersions = 10;
constexpr int64_t kTiers = 2;

class RevisionsTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(RevisionsTest, ACommittedVersionCostsAtMostTwoRevisionsPerTier) {
  const uint32_t world = GetParam();
  const std::string dir = local::MakeTempDir("revisions").value();
  local::SimEtcd etcd;
  CoordinatorConfig config;
  config.cluster = "test";
  config.listen = "unix:" + dir + "/c.sock";
  config.data_dir = dir + "/data";
  config.store = etcd.url();
  config.peers_enabled = false;
  {
    auto server = CoordinatorServer::Start(config, Clock::Real());
    ASSERT_TRUE(server.has_value()) << server.error().ToString();
    FakeAgent agent((*server)->endpoint(), "n0");
    ASSERT_TRUE(
        local::WaitUntil([&] { return (*server)->epoch().value == 1; }, std::chrono::seconds(20)));
    agent.Attach();
    ASSERT_TRUE(local::WaitUntil([&] { return agent.Join("gpt", "run", 0, world).has_value(); },
                                 std::chrono::seconds(20)));
    for (uint32_t rank = 1; rank < world; ++rank) {
      ASSERT_TRUE(agent.Join("gpt", "run", rank, world).has_value());
    }
    const int64_t before = etcd.revision();
    for (uint64_t step = 1; step <= kVersions; ++step) {
      for (const Tier tier : {Tier::kMemory, Tier::kDisk}) {
        std::vector<StoredReplica> replicas;
        for (uint32_t rank = 0; rank < world; ++rank) {
          const VersionId version{Incarnation{1}, Step{step}};
          replicas.push_back(MakeReplica("gpt", version, rank, world, tier));
        }
        ASSERT_TRUE(agent.Hold(1, replicas).ok());
      }
    }
    const VersionId last{Incarnation{1}, Step{kVersions}};
    const auto on_disk = [&] { return agent.StateOf("gpt").committed[Tier::kDisk] == last; };
    ASSERT_TRUE(local::WaitUntil(on_disk, std::chrono::seconds(20)));
    const int64_t revisions = etcd.revision() - before;
    RecordProperty("revisions", static_cast<int>(revisions));
    EXPECT_GE(revisions, static_cast<int64_t>(kVersions) * kTiers);
    EXPECT_LE(revisions, static_cast<int64_t>(kVersions) * kTiers * 2);
    printf("world %u: %ld revisions for %lu versions at two tiers\n", world, revisions, kVersions);
    agent.Detach();
  }
  std::filesystem::remove_all(dir);
}

INSTANTIATE_TEST_SUITE_P(Worlds, RevisionsTest, ::testing::Values(1, 16, 512));

}  // namespace
}  // namespace holdfast::coord
