// Reads while the applier's thread waits for its store, and around writes that fail.

#include "coordinator/server/reads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <thread>

#include "coordinator/server/coordinator_server.h"
#include "coordinator/store/memory_store.h"
#include "tests/coordinator/server/fake_agent.h"

namespace holdfast::coord {
namespace {
using Fault = MemoryStore::Fault;

/// Decides about the writes of a store: lets them pass, or holds them until they are released.
class Gate {
 public:
  void Close() { closed_ = true; }
  /// Lets the write that waits end with `fault`.
  void Open(Fault fault = Fault::kNone) {
    fault_ = fault;
    closed_ = false;
  }
  void AwaitWrite() {
    while (!waits_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Fault Pass() {
    if (!closed_) return Fault::kNone;
    waits_ = true;
    while (closed_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    waits_ = false;
    return fault_;
  }
  std::atomic<bool> held{true};

 private:
  std::atomic<bool> closed_{false};
  std::atomic<bool> waits_{false};
  std::atomic<Fault> fault_{Fault::kNone};
};

class GatedStore : public MemoryStore {
 public:
  GatedStore(MemoryStoreData& data, Gate& gate)
      : MemoryStore(data, [&gate] { return gate.Pass(); }), gate_(gate) {}
  std::function<bool()> HeldCheck() const override {
    return [&gate = gate_] { return gate.held.load(); };
  }

 private:
  Gate& gate_;
};

class BlockedApplierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "reads-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    CoordinatorConfig config;
    config.cluster = "test";
    config.listen = "unix:" + dir_ + "/c.sock";
    config.data_dir = dir_ + "/data";
    config.node_lease_ms = 60'000;
    auto opener = [this]() -> Result<std::unique_ptr<MetaStore>> {
      return std::unique_ptr<MetaStore>(std::make_unique<GatedStore>(data_, gate_));
    };
    auto server = CoordinatorServer::Start(config, opener, Clock::Real());
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
    stub_ = coordinator::Coordinator::NewStub(*MakeChannel(server_->endpoint(), {}));
    agent_ = std::make_unique<FakeAgent>(server_->endpoint(), "a");
    agent_->Attach();
    AwaitAttached();
    ASSERT_TRUE(agent_->Join("gpt", "run-1", 0, 1).has_value());
    ASSERT_TRUE(Hold(1).ok());
    ASSERT_EQ(CommittedSteps(), std::vector<uint64_t>{1});
  }
  void TearDown() override {
    gate_.held = true;
    gate_.Open();
    if (report_.valid()) report_.wait();
    agent_.reset();
    server_.reset();
    std::filesystem::remove_all(dir_);
  }

  void AwaitAttached() {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (Nodes() != 1) {
      ASSERT_LT(std::chrono::steady_clock::now(), limit);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  Status Hold(uint64_t step) {
    return agent_->Hold(server_->epoch().value,
                        {MakeReplica("gpt", {Incarnation{1}, Step{step}}, 0, 1, Tier::kMemory)});
  }
  /// Reports step 2 and returns when the write of its commit waits.
  void BlockTheApplier() {
    gate_.Close();
    report_ = std::async(std::launch::async, [this] { return Hold(2); });
    gate_.AwaitWrite();
  }
  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(10'000, GPR_TIMESPAN)));
  }
  grpc::Status GetStatus(pb::GetStatusReply* reply) {
    grpc::ClientContext context;
    SetDeadline(context);
    return stub_->GetStatus(&context, {}, reply);
  }
  int Nodes() {
    pb::GetStatusReply reply;
    GetStatus(&reply);
    int alive = 0;
    for (const auto& node : reply.nodes()) alive += node.alive() ? 1 : 0;
    return alive;
  }
  std::vector<uint64_t> CommittedSteps() {
    pb::ListVersionsRequest request;
    request.set_job("gpt");
    pb::ListVersionsReply reply;
    grpc::ClientContext context;
    SetDeadline(context);
    std::vector<uint64_t> steps;
    if (!stub_->ListVersions(&context, request, &reply).ok()) return steps;
    for (const auto& info : reply.versions()) {
      if (info.state() == "committed") steps.push_back(info.version().step());
    }
    return steps;
  }

  std::string dir_;
  MemoryStoreData data_;
  Gate gate_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<coordinator::Coordinator::Stub> stub_;
  std::unique_ptr<FakeAgent> agent_;
  std::future<Status> report_;
};

TEST_F(BlockedApplierTest, ReadsAreAnsweredFromWhatIsStored) {
  BlockTheApplier();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(CommittedSteps(), std::vector<uint64_t>{1});
    pb::GetStatusReply status;
    ASSERT_TRUE(GetStatus(&status).ok());
    ASSERT_EQ(status.jobs_size(), 1);
    EXPECT_EQ(status.jobs(0).memory_committed().step(), 1U);
    EXPECT_EQ(status.epoch(), server_->epoch().value);
    pb::PlanRestoreRequest plan;
    plan.set_job("gpt");
    pb::PlanRestoreReply planned;
    grpc::ClientContext plan_context;
    SetDeadline(plan_context);
    ASSERT_TRUE(stub_->PlanRestore(&plan_context, plan, &planned).ok());
    EXPECT_EQ(planned.version().step(), 1U);
    pb::WhatIfLostRequest loss;
    loss.add_nodes("a");
    pb::WhatIfLostReply impact;
    grpc::ClientContext loss_context;
    SetDeadline(loss_context);
    ASSERT_TRUE(stub_->WhatIfLost(&loss_context, loss, &impact).ok());
    ASSERT_EQ(impact.jobs_size(), 1);
    EXPECT_EQ(impact.jobs(0).newest().step(), 1U);
  }
  gate_.Open();
  EXPECT_TRUE(report_.get().ok());
  EXPECT_THAT(CommittedSteps(), ::testing::Contains(2U));
}

/// Repeated, since it depends on the moment of a read.
class RolledBackTest : public BlockedApplierTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Repeated, RolledBackTest, ::testing::Range(0, 6));

TEST_P(RolledBackTest, NoReadSeesWhatAFailedWriteRollsBack) {
  // Queries wait at every moment, so that the applier copies its state whenever it may.
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> newest{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        for (const uint64_t step : CommittedSteps()) newest = std::max(newest.load(), step);
      }
    });
  }
  BlockTheApplier();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  gate_.Open(Fault::kFailNotApplied);
  EXPECT_EQ(report_.get().code(), ErrorCode::kUnavailable);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(newest, 1U);
}

TEST_F(BlockedApplierTest, ACoordinatorWhoseLeaseEndedAnswersNoRead) {
  BlockTheApplier();
  pb::GetStatusReply before;
  ASSERT_TRUE(GetStatus(&before).ok());
  gate_.held = false;
  pb::GetStatusReply status;
  const grpc::Status sent = GetStatus(&status);
  EXPECT_EQ(sent.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.epoch(), 0U);
}

TEST_F(BlockedApplierTest, AReadSeesTheWriteThatWasAcknowledgedBefore) {
  for (uint64_t step = 2; step <= 200; ++step) {
    ASSERT_TRUE(Hold(step).ok());
    const std::vector<uint64_t> steps = CommittedSteps();
    ASSERT_FALSE(steps.empty());
    ASSERT_EQ(steps.front(), step);
  }
}

// ---- the queue of reads ----

TEST(ReadsTest, QueriesBeyondTheLimitAreRefusedAndTheOthersAnswered) {
  std::atomic<uint64_t> asked{0};
  Reads reads(Clock::Real(), [&] { ++asked; });
  std::promise<void> entered;
  std::promise<void> leave;
  // Without a snapshot this query is answered at once, and holds the thread of the reads.
  ASSERT_TRUE(reads.Submit(Reads::StateQuery([&](const State* state, Epoch) {
    EXPECT_EQ(state, nullptr);
    entered.set_value();
    leave.get_future().wait();
  })));
  entered.get_future().wait();
  size_t answered = 0;
  for (size_t i = 0; i < Reads::kWaitingMax; ++i) {
    ASSERT_TRUE(reads.Submit(Reads::SupervisorQuery([&](const Supervisor*) { ++answered; })));
  }
  EXPECT_FALSE(reads.Submit(Reads::SupervisorQuery([](const Supervisor*) { FAIL(); })));
  leave.set_value();
  reads.Stop();
  EXPECT_EQ(answered, Reads::kWaitingMax);
  EXPECT_EQ(asked, Reads::kWaitingMax + 1);
  // A query after the end is answered, too.
  bool known = true;
  EXPECT_TRUE(
      reads.Submit(Reads::StateQuery([&](const State* s, Epoch) { known = s != nullptr; })));
  EXPECT_FALSE(known);
}
}  // namespace
}  // namespace holdfast::coord
