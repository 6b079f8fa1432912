// Simulated agents with real gRPC streams against a real coordinator process: the load generator
// of the scale benchmarks, at a size for every test run.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "bench/load_coordinator.h"
#include "bench/process_usage.h"
#include "bench/simulated_nodes.h"
#include "coordinator/api/channel.h"
#include "coordinator/api/coordinator.grpc.pb.h"
#include "testing/cluster/cluster.h"
#include "testing/cluster/process.h"

namespace holdfast::bench {
namespace {
namespace pb = ::holdfast::coordinator;
constexpr uint64_t kVersions = 12;
constexpr uint64_t kAnyDigest = 0;

class ScaleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto dir = local::MakeTempDir("scale");
    ASSERT_TRUE(dir) << dir.error().ToString();
    dir_ = *dir;
    coordinator_ = std::make_unique<LoadCoordinator>(dir_, kVersions);
    const Status started = coordinator_->Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
    stub_ = pb::Coordinator::NewStub(*coord::MakeChannel(coordinator_->endpoint(), {}));
  }
  void TearDown() override {
    coordinator_.reset();
    std::filesystem::remove_all(dir_);
  }

  void Start() {
    nodes_ =
        std::make_unique<SimulatedNodes>(std::vector<Endpoint>{coordinator_->endpoint()}, load_);
    Expect(nodes_->AwaitAttached());
    Expect(nodes_->Join());
  }
  static void Expect(const Status& status) { ASSERT_TRUE(status.ok()) << status.ToString(); }

  pb::ListVersionsReply Versions() {
    pb::ListVersionsRequest list;
    list.set_job(kLoadJob);
    pb::ListVersionsReply listed;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->ListVersions(&context, list, &listed).ok());
    return listed;
  }
  /// Expects that each version is committed on disk, where the coordinator has each rank's replica.
  void ExpectAllReported(uint64_t versions) {
    pb::ListVersionsReply listed;
    const bool all_on_disk = local::WaitUntil(
        [&] {
          listed = Versions();
          return std::all_of(listed.versions().begin(), listed.versions().end(),
                             [](const pb::VersionInfo& version) {
                               return (version.committed_tiers() & TierBit(Tier::kDisk)) != 0;
                             });
        },
        std::chrono::seconds(20));
    EXPECT_TRUE(all_on_disk);
    ASSERT_EQ(static_cast<uint64_t>(listed.versions_size()), versions);
    for (const pb::VersionInfo& version : listed.versions()) {
      EXPECT_EQ(version.state(), "committed") << version.version().step();
      ExpectEachRank(version.version());
    }
  }
  void ExpectEachRank(const pb::Version& version) {
    pb::PlanRestoreRequest request;
    request.set_job(kLoadJob);
    *request.mutable_version() = version;
    request.set_all_replicas(true);
    pb::PlanRestoreReply plan;
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->PlanRestore(&context, request, &plan).ok());
    ASSERT_EQ(plan.outcome().code(), 0U) << plan.outcome().message();
    std::set<uint32_t> ranks;
    for (const pb::ShardSource& source : plan.sources()) {
      if (source.tier() == static_cast<uint32_t>(Tier::kDisk)) ranks.insert(source.rank());
      EXPECT_NE(source.digest(), kAnyDigest);
      EXPECT_EQ(source.node(), "n" + std::to_string(source.rank() / load_.ranks_per_node));
    }
    EXPECT_EQ(ranks.size(), nodes_->world()) << "step " << version.step();
  }

  std::string dir_;
  LoadOptions load_;
  std::unique_ptr<LoadCoordinator> coordinator_;
  std::unique_ptr<pb::Coordinator::Stub> stub_;
  std::unique_ptr<SimulatedNodes> nodes_;
};

TEST_F(ScaleTest, EveryVersionIsCommittedAndNoReportIsLost) {
  Start();
  for (uint64_t step = 1; step <= kVersions; ++step) {
    const auto times = nodes_->Commit(step);
    ASSERT_TRUE(times) << times.error().ToString();
    EXPECT_GE(times->whole, times->announced);
  }
  ExpectAllReported(kVersions);
}

TEST_F(ScaleTest, ReportsThatACoordinatorsEndCutsOffAreRepeatedToTheNextOne) {
  Start();
  for (uint64_t step = 1; step <= kVersions / 2; ++step) {
    nodes_->Save(step);
    Expect(nodes_->AwaitCommit(step));
  }
  coordinator_->Kill();
  Expect(nodes_->AwaitDetached());
  nodes_->Save(kVersions / 2 + 1);
  Expect(coordinator_->Start());
  Expect(nodes_->AwaitAttached());
  Expect(nodes_->AwaitCommit(kVersions / 2 + 1));
  for (uint64_t step = kVersions / 2 + 2; step <= kVersions; ++step) {
    nodes_->Save(step);
    Expect(nodes_->AwaitCommit(step));
  }
  ExpectAllReported(kVersions);
}

TEST_F(ScaleTest, AMissingAgentKeepsAVersionFromItsCommit) {
  load_.patience = std::chrono::seconds(2);
  Start();
  coordinator_->Kill();
  Expect(nodes_->AwaitDetached());
  nodes_->Save(1);
  const Status status = nodes_->AwaitCommit(1);
  EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("0 agents have the commit of step 1"));
}

TEST_F(ScaleTest, UsageOfAProcessIsReadFromTheKernel) {
  const auto usage = UsageOf(coordinator_->pid());
  ASSERT_TRUE(usage) << usage.error().ToString();
  EXPECT_GT(usage->resident_bytes, 1U << 20);
  EXPECT_GT(usage->threads, 1U);
  EXPECT_GT(usage->descriptors, 3U);
  coordinator_->Kill();
  EXPECT_EQ(UsageOf(-1).error().code(), ErrorCode::kNotFound);
}
}  // namespace
}  // namespace holdfast::bench
