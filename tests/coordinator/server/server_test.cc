#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "coordinator/contract/limits.h"
#include "coordinator/contract/pace.h"
#include "coordinator/server/coordinator_server.h"
#include "coordinator/store/memory_store.h"
#include "tests/coordinator/server/fake_agent.h"
#include "tests/coordinator/server/server_fixture.h"

// A real server on a unix socket with real clients.

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

class ServerTest : public ServerFixture {
 protected:
  void SetUp() override {
    ServerFixture::SetUp();
    config_.node_lease_ms = 1000;
    Start();
  }
  uint64_t epoch() const { return server_->epoch().value; }
  /// Attaches and waits until the status shows the node.
  void Attach(FakeAgent& agent) {
    agent.Attach();
    ASSERT_TRUE(Eventually([&] {
      const pb::GetStatusReply status = agent.GetStatus();
      for (const auto& node : status.nodes()) {
        if (node.node() == agent.node() && node.alive()) return true;
      }
      return false;
    }));
  }
};

/// Answers every PrepareShard of an agent with success until destroyed.
class Preparer {
 public:
  Preparer(FakeAgent& agent, std::function<uint64_t()> epoch)
      : thread_([this, &agent, epoch] {
          size_t seen = 0;
          while (!stop_) {
            std::vector<PrepareShard> directives = agent.PrepareDirectives();
            for (; seen < directives.size(); ++seen) {
              pb::ReportRequest report = agent.NewReport(epoch());
              ToProto(Prepared{directives[seen].request.value(), Status::Ok()},
                      report.add_prepared());
              (void)agent.Report(report);
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
        }) {}
  ~Preparer() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// A clock that a test can set forward. To the coordinator this looks as if its process was
/// stopped.
class JumpingClock : public Clock {
 public:
  TimePoint Now() const override { return Clock::Real().Now() + Duration(ahead_.load()); }
  int64_t WallNanos() const override { return Clock::Real().WallNanos() + ahead_.load(); }
  void SleepFor(Duration duration) override { Clock::Real().SleepFor(duration); }
  void Jump(Duration duration) { ahead_ += duration.count(); }

 private:
  std::atomic<int64_t> ahead_{0};
};

TEST_F(ServerTest, NoNodeIsLostAfterTheCoordinatorWasPaused) {
  JumpingClock clock;
  server_.reset();
  auto server = CoordinatorServer::Start(config_, clock);
  ASSERT_TRUE(server.has_value()) << server.error().ToString();
  server_ = *std::move(server);
  FakeAgent a(server_->endpoint(), "a");
  Attach(a);
  for (int i = 0; i < 3; ++i) {
    clock.Jump(std::chrono::seconds(7));
    // Long enough for many ticks, but shorter than the node's lease.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_TRUE(a.Report(a.NewReport(epoch())).ok()) << "jump " << i;
  }
  // A node that then stays silent is lost as usual.
  EXPECT_TRUE(Eventually([&] { return !a.GetStatus().nodes(0).alive(); }));
  server_.reset();  // before its clock
}

TEST_F(ServerTest, AReasonIsCutBetweenCharacters) {
  FakeAgent a(server_->endpoint(), "a");
  a.worker_address = "127.0.0.1";
  Attach(a);
  auto stub = coordinator::Coordinator::NewStub(*MakeChannel(server_->endpoint(), {}));
  coordinator::StartRunRequest run;
  run.mutable_spec()->set_job("lm");
  run.mutable_spec()->add_command("true");
  run.mutable_spec()->set_directory("/");
  run.mutable_spec()->set_nodes(1);
  run.mutable_spec()->set_ranks_per_node(1);
  coordinator::StartRunReply started;
  grpc::ClientContext start;
  ASSERT_TRUE(stub->StartRun(&start, run, &started).ok());
  ASSERT_EQ(started.outcome().code(), 0U) << started.outcome().message();
  std::string run_id;
  ASSERT_TRUE(Eventually([&] {
    for (const pb::Directive& directive : a.Directives()) {
      if (directive.has_workers()) run_id = directive.workers().run_id();
    }
    return !run_id.empty();
  }));
  pb::ReportRequest report = a.NewReport(epoch());
  pb::WorkerState* worker = report.add_workers();
  worker->set_job("lm");
  worker->set_run_id(run_id);
  worker->set_phase(2);
  worker->set_exit_code(1);
  ASSERT_TRUE(a.Report(report).ok());
  const auto incidents = [&] {
    grpc::ClientContext context;
    coordinator::ListIncidentsReply reply;
    const grpc::Status status =
        stub->ListIncidents(&context, coordinator::ListIncidentsRequest(), &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  };
  ASSERT_TRUE(Eventually([&] { return incidents().incidents_size() != 0; }));

  // The limit of 1024 bytes is inside the last character.
  const std::string reason(1023, 'x');
  coordinator::AcknowledgeIncidentRequest acknowledge;
  acknowledge.set_id(incidents().incidents(0).id());
  acknowledge.set_why(reason + "é");
  coordinator::AcknowledgeIncidentReply done;
  grpc::ClientContext context;
  ASSERT_TRUE(stub->AcknowledgeIncident(&context, acknowledge, &done).ok());
  ASSERT_EQ(done.outcome().code(), 0U) << done.outcome().message();
  EXPECT_EQ(incidents().incidents(0).plan(), "acknowledged: " + reason);
}

TEST_F(ServerTest, TelemetryIsAcceptedOnlyFromAttachedAgentsAndForRunningJobs) {
  FakeAgent a(server_->endpoint(), "a");
  Attach(a);
  ASSERT_TRUE(a.Join("gpt", "run-1", 0, 1).has_value());
  auto stub = coordinator::Coordinator::NewStub(*MakeChannel(server_->endpoint(), {}));
  const auto observe = [&](const std::string& node, uint64_t start, const std::string& job,
                           uint64_t incarnation, uint32_t world) {
    coordinator::ObserveRequest request;
    request.set_node(node);
    request.set_agent_start(start);
    coordinator::Digest* digest = request.add_digests();
    digest->set_job(job);
    digest->set_incarnation(incarnation);
    digest->set_world(world);
    grpc::ClientContext context;
    coordinator::ObserveReply reply;
    EXPECT_TRUE(stub->Observe(&context, request, &reply).ok());
    EXPECT_EQ(reply.pause_ms(), 100U);
    return FromProto(reply.outcome());
  };
  EXPECT_EQ(observe("stranger", 1, "gpt", 1, 1).code(), ErrorCode::kFenced);
  EXPECT_EQ(observe("a", 2, "gpt", 1, 1).code(), ErrorCode::kFenced);
  // Unknown jobs, incarnations and worlds are not stored.
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(a.Report(a.NewReport(epoch())).ok());  // keeps the lease
    EXPECT_TRUE(observe("a", 1, "job-" + std::to_string(i), 1, kWorldMax).ok());
  }
  EXPECT_TRUE(observe("a", 1, "gpt", 9, 1).ok());
  EXPECT_TRUE(observe("a", 1, "gpt", 1, kWorldMax).ok());
  EXPECT_EQ(server_->watched().jobs, 0U);
  EXPECT_TRUE(observe("a", 1, "gpt", 1, 1).ok());
  EXPECT_EQ(server_->watched().jobs, 1U);
}

TEST(PaceTest, ManyAgentsSendFewMessagesEach) {
  using std::chrono::milliseconds;
  EXPECT_EQ(BatchPause(0), milliseconds(0));
  EXPECT_EQ(BatchPause(200), milliseconds(0));
  EXPECT_EQ(BatchPause(201), milliseconds(1));
  EXPECT_EQ(BatchPause(2048), milliseconds(5));
  EXPECT_EQ(BatchPause(100'000), milliseconds(5));
  EXPECT_EQ(TelemetryPause(0), milliseconds(100));
  EXPECT_EQ(TelemetryPause(200), milliseconds(100));
  EXPECT_EQ(TelemetryPause(1'000), milliseconds(500));
  EXPECT_EQ(TelemetryPause(100'000), milliseconds(1'000));
  const auto lease = milliseconds(3'000);
  EXPECT_EQ(HeartbeatPause(0, lease), milliseconds(500));
  EXPECT_EQ(HeartbeatPause(500, lease), milliseconds(500));
  EXPECT_EQ(HeartbeatPause(800, lease), milliseconds(800));
  EXPECT_EQ(HeartbeatPause(100'000, lease), milliseconds(1'000));
  EXPECT_EQ(HeartbeatPause(100'000, lease / 2), milliseconds(500)) << "a third of the lease";
  EXPECT_EQ(HeartbeatPause(100'000, milliseconds(300)), milliseconds(500));
}

TEST_F(ServerTest, AReportOfMisplacedWorkersIsHarmless) {
  FakeAgent a(server_->endpoint(), "a");
  a.worker_address = "127.0.0.1";
  Attach(a);
  auto stub = coordinator::Coordinator::NewStub(*MakeChannel(server_->endpoint(), {}));
  coordinator::StartRunRequest run;
  run.mutable_spec()->set_job("gpt");
  run.mutable_spec()->add_command("true");
  run.mutable_spec()->set_directory("/");
  run.mutable_spec()->set_nodes(1);
  run.mutable_spec()->set_ranks_per_node(1);
  grpc::ClientContext context;
  coordinator::StartRunReply started;
  ASSERT_TRUE(stub->StartRun(&context, run, &started).ok());
  ASSERT_EQ(started.outcome().code(), 0U) << started.outcome().message();
  coordinator::GetRunsReply runs;
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext asking;
    return stub->GetRuns(&asking, {}, &runs).ok() && runs.runs_size() == 1 &&
           runs.runs(0).run_id().starts_with("run-1.1");
  }));
  pb::ReportRequest report = a.NewReport(epoch());
  coordinator::WorkerState* worker = report.add_workers();
  worker->set_job("gpt");
  worker->set_run_id(runs.runs(0).run_id());
  worker->set_rank(900'000);
  worker->set_phase(2);
  worker->set_exit_code(1);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(a.Report(report).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST_F(ServerTest, CommitsOnceEveryRankHasAReplica) {
  FakeAgent a(server_->endpoint(), "a");
  FakeAgent b(server_->endpoint(), "b");
  Attach(a);
  Attach(b);
  // A node without any job receives the epoch at once, which confirms that it is attached.
  ASSERT_TRUE(Eventually([&] { return !a.Directives().empty(); }));
  EXPECT_EQ(a.Directives()[0].epoch(), epoch());
  EXPECT_EQ(a.Directives()[0].kind_case(), pb::Directive::KIND_NOT_SET);
  EXPECT_EQ(a.Join("gpt", "run-1", 0, 2).value(), 1U);
  EXPECT_EQ(b.Join("gpt", "run-1", 1, 2).value(), 1U);
  ASSERT_TRUE(a.Hold(epoch(), {MakeReplica("gpt", V(1, 5), 0, 2, Tier::kMemory)}).ok());
  EXPECT_EQ(a.GetStatus().jobs(0).memory_committed().step(), 0U);
  ASSERT_TRUE(b.Hold(epoch(), {MakeReplica("gpt", V(1, 5), 1, 2, Tier::kMemory)}).ok());
  pb::GetStatusReply status = a.GetStatus("gpt");
  ASSERT_EQ(status.jobs_size(), 1);
  EXPECT_EQ(FromProto(status.jobs(0).memory_committed()), V(1, 5));
  EXPECT_EQ(FromProto(status.jobs(0).restorable()), V(1, 5));
  EXPECT_EQ(status.cluster(), "test");
  ASSERT_TRUE(Eventually([&] { return a.StateOf("gpt").committed[Tier::kMemory] == V(1, 5); }));
  ASSERT_TRUE(Eventually([&] { return b.StateOf("gpt").committed[Tier::kMemory] == V(1, 5); }));
  pb::PlanRestoreReply plan = a.PlanRestore("gpt");
  ASSERT_EQ(plan.sources_size(), 2);
  EXPECT_EQ(plan.sources(1).node(), "b");
  EXPECT_EQ(plan.sources(1).address(), "unix:/tmp/b.sock");
}

TEST_F(ServerTest, ARestartKeepsDecisionsAndResolvesUnknownOutcomes) {
  FakeAgent a(server_->endpoint(), "a");
  Attach(a);
  ASSERT_TRUE(a.Join("gpt", "run-1", 0, 2).has_value());
  ASSERT_TRUE(a.Join("gpt", "run-1", 1, 2).has_value());
  auto hold = [&](uint64_t step, uint32_t rank, Tier tier) {
    return a.Hold(epoch(), {MakeReplica("gpt", V(1, step), rank, 2, tier)}).ok();
  };
  ASSERT_TRUE(hold(1, 0, Tier::kMemory) && hold(1, 1, Tier::kMemory));
  ASSERT_TRUE(hold(2, 0, Tier::kMemory));
  // This replica is not reported to the coordinator before it stops.
  a.inventory.push_back(MakeReplica("gpt", V(1, 2), 1, 2, Tier::kMemory));
  const uint64_t before = epoch();
  Start();
  EXPECT_EQ(epoch(), before + 1);
  ASSERT_TRUE(Eventually([&] { return a.End().has_value(); }));
  EXPECT_EQ(FromProto(a.GetStatus("gpt").jobs(0).memory_committed()), V(1, 1));
  // An agent of the old epoch has to attach again first.
  Status stale = a.Report(a.NewReport(before));
  EXPECT_EQ(stale.code(), ErrorCode::kFenced) << stale.ToString();
  Attach(a);
  EXPECT_EQ(FromProto(a.GetStatus("gpt").jobs(0).memory_committed()), V(1, 2));
  // The same run has the same incarnation, a new run opens the next, and the old run is fenced.
  EXPECT_EQ(a.Join("gpt", "run-1", 0, 2).value(), 1U);
  EXPECT_EQ(a.Join("gpt", "run-2", 0, 2).value(), 2U);
  EXPECT_EQ(a.Join("gpt", "run-1", 0, 2).error().code(), ErrorCode::kFenced);
}

TEST_F(ServerTest, DecidesOneRestoreForAllRanks) {
  FakeAgent a(server_->endpoint(), "a");
  FakeAgent b(server_->endpoint(), "b");
  Attach(a);
  Attach(b);
  ASSERT_TRUE(a.Join("gpt", "run-1", 0, 2).has_value());
  ASSERT_TRUE(b.Join("gpt", "run-1", 1, 2).has_value());
  auto fresh = a.Decide("gpt", 1, 0);
  ASSERT_FALSE(fresh.has_value());
  EXPECT_EQ(fresh.error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(a.Hold(epoch(), {MakeReplica("gpt", V(1, 5), 0, 2, Tier::kMemory)}).ok());
  ASSERT_TRUE(b.Hold(epoch(), {MakeReplica("gpt", V(1, 5), 1, 2, Tier::kMemory)}).ok());

  ASSERT_EQ(a.Join("gpt", "run-2", 0, 2).value(), 2U);
  ASSERT_EQ(b.Join("gpt", "run-2", 1, 2).value(), 2U);
  Result<pb::DecideRestoreReply> first = Fail(Status());
  Result<pb::DecideRestoreReply> second = Fail(Status());
  {
    Preparer pa(a, [this] { return epoch(); });
    Preparer pb(b, [this] { return epoch(); });
    std::thread other([&] { first = a.Decide("gpt", 2, 0); });
    second = b.Decide("gpt", 2, 1);
    other.join();
  }
  ASSERT_TRUE(first.has_value()) << first.error().ToString();
  ASSERT_TRUE(second.has_value()) << second.error().ToString();
  EXPECT_EQ(FromProto(first->version()), V(1, 5));
  EXPECT_EQ(FromProto(second->version()), V(1, 5));
  EXPECT_EQ(second->tier(), static_cast<uint32_t>(Tier::kMemory));
  // The decision survives a restart, for a rank that requests it again.
  Start();
  Attach(a);
  Attach(b);
  Preparer pa(a, [this] { return epoch(); });
  Preparer pb(b, [this] { return epoch(); });
  auto again = a.Decide("gpt", 2, 0);
  ASSERT_TRUE(again.has_value()) << again.error().ToString();
  EXPECT_EQ(FromProto(again->version()), V(1, 5));
  EXPECT_EQ(a.Decide("gpt", 1, 0).error().code(), ErrorCode::kFenced);
}

/// An agent that takes part in parity groups.
void MakePeer(FakeAgent& agent, const std::string& rack) {
  agent.peer_address = "unix:/tmp/" + agent.node() + ".peer";
  agent.labels = {{"rack", rack}};
  agent.slot_bytes = 8192;
}

StoredReplica MakeParity(VersionId version, uint32_t number, uint32_t world) {
  StoredReplica report = MakeReplica("gpt", version, number, world, Tier::kMemory);
  report.identity.rank = ParityRank(number);
  return report;
}

// The answer and the cancellation of a call race. The loser must not touch the call, which may be
// deleted by then.
TEST_F(ServerTest, AnAnswerMayComeAfterItsCallWasCancelled) {
  FakeAgent a(server_->endpoint(), "a");
  Attach(a);
  ASSERT_TRUE(a.Join("gpt", "run-1", 0, 1).has_value());
  ASSERT_TRUE(a.Hold(epoch(), {MakeReplica("gpt", V(1, 5), 0, 1, Tier::kMemory)}).ok());
  ASSERT_EQ(a.Join("gpt", "run-2", 0, 1).value(), 2U);
  Preparer prepares(a, [this] { return epoch(); });
  ASSERT_TRUE(a.Decide("gpt", 2, 0).has_value());
  std::atomic<int> answered{0};
  std::atomic<int> cancelled{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 16; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        const auto reply = a.Decide("gpt", 2, 0, /*timeout_ms=*/1 + i % 3);
        ++(reply.has_value() ? answered : cancelled);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(a.Decide("gpt", 2, 0).has_value()) << "the server still answers";
  EXPECT_EQ(answered + cancelled, 1600);
  // On a fast or a slow machine one of them may not happen; then this run shows nothing.
  RecordProperty("answered", answered.load());
  RecordProperty("cancelled", cancelled.load());
}

TEST_F(ServerTest, ALostNodeIsDecodedByItsGroup) {
  config_.node_lease_ms = 30'000;
  Start();
  FakeAgent a(server_->endpoint(), "a");
  FakeAgent b(server_->endpoint(), "b");
  FakeAgent c(server_->endpoint(), "c");
  const std::vector<FakeAgent*> agents = {&a, &b, &c};
  for (uint32_t rank = 0; rank < 3; ++rank) {
    MakePeer(*agents[rank], "r" + std::to_string(rank));
    Attach(*agents[rank]);
    ASSERT_EQ(agents[rank]->Join("gpt", "run-1", rank, 3).value(), 1U);
  }
  ASSERT_TRUE(Eventually([&] { return a.StateOf("gpt").group.has_value(); }));
  const GroupPlan group = *a.StateOf("gpt").group;
  ASSERT_EQ(group.members().size(), 3U);
  EXPECT_EQ(group.layout().parity_count(), 1U);
  EXPECT_EQ(group.members()[1].address, "unix:/tmp/b.peer");
  EXPECT_EQ(group.members()[2].ranks, (std::vector<PlanRank>{{Rank{2}, 8192}}));

  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(a.GetStatus("gpt").jobs(0).peer_committed().step(), 0U);
    EXPECT_EQ(a.GetStatus("gpt").jobs(0).peer_target_held(), i);
    const StoredReplica data = MakeReplica("gpt", V(1, 5), i, 3, Tier::kMemory);
    ASSERT_TRUE(agents[i]->Hold(epoch(), {data, MakeParity(V(1, 5), i, 3)}).ok());
  }
  pb::GetStatusReply status = a.GetStatus("gpt");
  EXPECT_EQ(FromProto(status.jobs(0).peer_committed()), V(1, 5));
  EXPECT_EQ(status.jobs(0).peer_members(), 3U);
  EXPECT_EQ(status.jobs(0).peer_target_step(), 6U);
  EXPECT_EQ(status.nodes(1).labels().at("rack"), "r1");
  ASSERT_EQ(status.nodes(1).memberships_size(), 1);
  EXPECT_EQ(status.nodes(1).memberships(0).number(), 1U);
  EXPECT_EQ(status.nodes(1).memberships(0).position(), 1U);
  EXPECT_EQ(status.nodes(1).memberships(0).members(), 3U);
  EXPECT_EQ(status.nodes(1).memberships(0).parity(), 1U);
  EXPECT_EQ(status.nodes(1).held_parity_bytes(), 1001U);
  EXPECT_EQ(a.ListVersions("gpt").versions(0).survives(), "any 1 node of each group");

  // The plan and the commit outlive the coordinator.
  Start();
  for (FakeAgent* agent : agents) Attach(*agent);
  EXPECT_EQ(FromProto(a.GetStatus("gpt").jobs(0).peer_committed()), V(1, 5));
  ASSERT_TRUE(Eventually([&] { return a.StateOf("gpt").group == group; }));

  // c's machine is replaced by an empty one.
  c.Detach();
  FakeAgent spare(server_->endpoint(), "c", 2);
  MakePeer(spare, "r2");
  Attach(spare);
  EXPECT_TRUE(Eventually([&] {  // until then the old agent's replicas count
    return a.GetStatus("gpt").jobs(0).restorable_tier() == static_cast<uint32_t>(Tier::kPeer);
  }));
  EXPECT_EQ(FromProto(a.GetStatus("gpt").jobs(0).restorable()), V(1, 5));
  ASSERT_EQ(a.Join("gpt", "run-2", 0, 3).value(), 2U);
  ASSERT_EQ(b.Join("gpt", "run-2", 1, 3).value(), 2U);
  ASSERT_EQ(spare.Join("gpt", "run-2", 2, 3).value(), 2U);
  Preparer pa(a, [this] { return epoch(); });
  Preparer pb(b, [this] { return epoch(); });
  Preparer pc(spare, [this] { return epoch(); });
  auto first = a.Decide("gpt", 2, 0);
  ASSERT_TRUE(first.has_value()) << first.error().ToString();
  EXPECT_EQ(FromProto(first->version()), V(1, 5));
  EXPECT_EQ(first->tier(), static_cast<uint32_t>(Tier::kMemory));
  auto decoded = spare.Decide("gpt", 2, 2);
  ASSERT_TRUE(decoded.has_value()) << decoded.error().ToString();
  EXPECT_EQ(decoded->tier(), static_cast<uint32_t>(Tier::kPeer));
  const PrepareShard directive = spare.PrepareDirectives().at(0);
  EXPECT_EQ(directive.tier, Tier::kPeer);
  ASSERT_EQ(directive.group->members().size(), 3U);
  EXPECT_TRUE(directive.group->members()[0].has_data && directive.group->members()[1].has_parity);
  EXPECT_FALSE(directive.group->members()[2].has_data || directive.group->members()[2].has_parity);
}

TEST_F(ServerTest, RefusesInvalidPeers) {
  FakeAgent address(server_->endpoint(), "a");
  address.peer_address = "nowhere";
  address.Attach();
  ASSERT_TRUE(Eventually([&] { return address.End().has_value(); }));
  EXPECT_EQ(address.End()->code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(address.End()->message(), HasSubstr("peer_address"));
  FakeAgent label(server_->endpoint(), "b");
  label.labels = {{"no name", "x"}};
  label.Attach();
  ASSERT_TRUE(Eventually([&] { return label.End().has_value(); }));
  EXPECT_EQ(label.End()->code(), ErrorCode::kInvalidArgument);
  FakeAgent slot(server_->endpoint(), "c");
  Attach(slot);
  slot.slot_bytes = kSlotBytesMax + 1;
  EXPECT_EQ(slot.Join("gpt", "run", 0, 1).error().code(), ErrorCode::kInvalidArgument);
  slot.slot_bytes = kSlotBytesMax;
  EXPECT_TRUE(slot.Join("gpt", "run", 0, 1).has_value());
}

TEST_F(ServerTest, PeersCanBeDisabled) {
  config_.peers_enabled = false;
  Start();
  FakeAgent a(server_->endpoint(), "a");
  FakeAgent b(server_->endpoint(), "b");
  MakePeer(a, "r");
  MakePeer(b, "r");
  Attach(a);
  Attach(b);
  ASSERT_TRUE(a.Join("gpt", "run-1", 0, 2).has_value());
  ASSERT_TRUE(b.Join("gpt", "run-1", 1, 2).has_value());
  EXPECT_EQ(a.GetStatus("gpt").jobs(0).peer_members(), 0U);
  EXPECT_EQ(a.GetStatus("gpt").jobs(0).not_protected_why(), "peers are disabled");
}

TEST_F(ServerTest, AWaitingRestoreEndsWithItsDeadline) {
  FakeAgent a(server_->endpoint(), "a");
  Attach(a);
  ASSERT_TRUE(a.Join("gpt", "run-1", 0, 2).has_value());
  ASSERT_TRUE(a.Hold(epoch(), {MakeReplica("gpt", V(1, 1), 0, 2, Tier::kMemory),
                               MakeReplica("gpt", V(1, 1), 1, 2, Tier::kMemory)})
                  .ok());
  ASSERT_TRUE(a.Join("gpt", "run-2", 0, 2).has_value());
  auto reply = a.Decide("gpt", 2, 0, 300);  // rank 1 never joins
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code(), ErrorCode::kDeadlineExceeded);
  // The coordinator has removed the caller, so the next one may name another version.
  ASSERT_TRUE(Eventually([&] {
    auto named = a.Decide("gpt", 2, 0, 200, V(1, 1));
    return !named && named.error().code() == ErrorCode::kDeadlineExceeded;
  }));
}

TEST_F(ServerTest, ANewerAgentReplacesTheOlder) {
  FakeAgent older(server_->endpoint(), "a", 10);
  FakeAgent newer(server_->endpoint(), "a", 11);
  Attach(older);
  newer.Attach();
  ASSERT_TRUE(Eventually([&] { return older.End().has_value(); }));
  EXPECT_EQ(older.End()->code(), ErrorCode::kFenced) << older.End()->ToString();
  EXPECT_EQ(older.Report(older.NewReport(epoch())).code(), ErrorCode::kFenced);
  EXPECT_TRUE(Eventually([&] { return newer.Report(newer.NewReport(epoch())).ok(); }));
  older.Attach();
  ASSERT_TRUE(Eventually([&] { return older.End().has_value(); }));
  EXPECT_EQ(older.End()->code(), ErrorCode::kFenced);
  EXPECT_THAT(older.End()->message(), HasSubstr("newer agent"));
}

TEST_F(ServerTest, RefusesForeignAgents) {
  FakeAgent foreign(server_->endpoint(), "a", 1, "elsewhere");
  foreign.Attach();
  ASSERT_TRUE(Eventually([&] { return foreign.End().has_value(); }));
  EXPECT_EQ(foreign.End()->code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(foreign.End()->message(), HasSubstr("cluster 'elsewhere'"));

  FakeAgent ahead(server_->endpoint(), "a");
  ahead.epoch_seen = epoch() + 1;
  ahead.Attach();
  ASSERT_TRUE(Eventually([&] { return ahead.End().has_value(); }));
  EXPECT_EQ(ahead.End()->code(), ErrorCode::kFenced);
  EXPECT_THAT(ahead.End()->message(), HasSubstr("is an older copy"));
}

TEST_F(ServerTest, RefusesBadJoins) {
  FakeAgent a(server_->endpoint(), "a");
  EXPECT_EQ(a.Join("gpt", "run", 0, 1).error().code(), ErrorCode::kUnavailable);
  Attach(a);
  EXPECT_EQ(a.Join("..", "run", 0, 1).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(a.Join("gpt", "", 0, 1).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(a.Join("gpt", "run", 4, 4).error().code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(a.Join("gpt", "run", 0, 4, 7).has_value());
  Status world = a.Join("gpt", "run", 1, 5, 7).error();
  EXPECT_EQ(world.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(world.message(), HasSubstr("has 5 ranks"));
  EXPECT_THAT(world.message(), HasSubstr("has 4"));
  Status owner = a.Join("gpt", "run", 1, 4, 8).error();
  EXPECT_EQ(owner.code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(owner.message(), HasSubstr("belongs to uid 7"));
}

TEST_F(ServerTest, ASilentNodeIsLost) {
  FakeAgent a(server_->endpoint(), "a");
  Attach(a);
  ASSERT_TRUE(Eventually([&] { return a.End().has_value(); }));  // its lease ran out
  EXPECT_EQ(a.End()->code(), ErrorCode::kUnavailable);
  EXPECT_FALSE(a.GetStatus().nodes(0).alive());
  // Heartbeats keep it.
  Attach(a);
  for (int i = 0; i < 15; ++i) {
    ASSERT_TRUE(a.Report(a.NewReport(epoch())).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_FALSE(a.End().has_value());
  EXPECT_TRUE(a.GetStatus().nodes(0).alive());
}

TEST_F(ServerTest, ANodeHasTheArenaThatItsAgentReportedLast) {
  config_.node_lease_ms = 30'000;
  Start();
  FakeAgent a(server_->endpoint(), "a");
  Attach(a);
  EXPECT_FALSE(a.GetStatus().nodes(0).has_arena()) << "an older agent does not report it";
  pb::ReportRequest report = a.NewReport(epoch());
  report.mutable_arena()->set_bytes(64 << 20);
  report.mutable_arena()->set_reserved_bytes(uint64_t{1} << 60);
  ASSERT_TRUE(a.Report(report).ok());
  const pb::NodeStatus node = a.GetStatus().nodes(0);
  EXPECT_EQ(node.arena().bytes(), 64U << 20);
  EXPECT_EQ(node.arena().reserved_bytes(), kArenaBytesMax);
  a.arena.emplace().set_bytes(32 << 20);
  Attach(a);
  ASSERT_TRUE(Eventually([&] { return a.GetStatus().nodes(0).arena().bytes() == 32 << 20; }));
}

TEST_F(ServerTest, AVerificationIsListedAndSurvivesARestart) {
  config_.node_lease_ms = 30'000;
  Start();
  FakeAgent a(server_->endpoint(), "a");
  Attach(a);
  ASSERT_TRUE(a.Join("gpt", "run-1", 0, 1).has_value());
  ASSERT_TRUE(a.Hold(epoch(), {MakeReplica("gpt", V(1, 1), 0, 1, Tier::kDisk)}).ok());
  EXPECT_FALSE(a.ListVersions("gpt").versions(0).has_verification());
  pb::Verification found;
  EXPECT_EQ(a.RecordVerification("gpt", V(1, 1), found).code(), ErrorCode::kInvalidArgument);
  found.set_missing(2);
  found.set_left_out(3);
  found.set_wall_nanos(77);
  EXPECT_EQ(a.RecordVerification("gpt", V(1, 2), found).code(), ErrorCode::kNotFound);
  EXPECT_EQ(a.RecordVerification("..", V(1, 1), found).code(), ErrorCode::kInvalidArgument);
  const int64_t before = Clock::Real().WallNanos();
  ASSERT_TRUE(a.RecordVerification("gpt", V(1, 1), found).ok());
  const pb::Verification listed = a.ListVersions("gpt").versions(0).verification();
  EXPECT_EQ(listed.missing(), 2U);
  EXPECT_EQ(listed.left_out(), 3U);
  EXPECT_EQ(listed.ok(), 0U);
  EXPECT_FALSE(listed.deep());
  EXPECT_GE(listed.wall_nanos(), before) << "the time is the coordinator's";
  a.Detach();
  Start();
  EXPECT_EQ(a.ListVersions("gpt").versions(0).verification().SerializeAsString(),
            listed.SerializeAsString());
}

TEST_F(ServerTest, RetentionKeepsPinnedVersions) {
  config_.keep_last = 2;
  config_.node_lease_ms = 30'000;
  Start();
  FakeAgent a(server_->endpoint(), "a");
  Attach(a);
  ASSERT_TRUE(a.Join("gpt", "run-1", 0, 1).has_value());
  for (uint64_t step = 1; step <= 5; ++step) {
    ASSERT_TRUE(a.Hold(epoch(), {MakeReplica("gpt", V(1, step), 0, 1, Tier::kMemory),
                                 MakeReplica("gpt", V(1, step), 0, 1, Tier::kDisk)})
                    .ok());
    if (step == 1) {
      ASSERT_TRUE(a.Pin("gpt", V(1, 1), true).ok());
    }
  }
  EXPECT_EQ(a.Pin("gpt", V(1, 99), true).code(), ErrorCode::kNotFound);
  std::vector<VersionId> removed;
  ASSERT_TRUE(Eventually([&] {
    removed.clear();
    for (const auto& directive : a.Directives()) {
      if (directive.has_remove()) removed.push_back(FromProto(directive.remove().version()));
    }
    return removed.size() >= 2;
  }));
  EXPECT_THAT(removed, ::testing::ElementsAre(V(1, 2), V(1, 3)));
  pb::ReportRequest removed_report = a.NewReport(epoch());
  for (VersionId version : removed)
    ToProto(RemovedReplica{"gpt", version, Rank{0}, Tier::kDisk}, removed_report.add_removed());
  ASSERT_TRUE(a.Report(removed_report).ok());
  std::vector<VersionId> listed;
  const pb::ListVersionsReply versions = a.ListVersions("gpt");
  for (const auto& info : versions.versions()) listed.push_back(FromProto(info.version()));
  EXPECT_THAT(listed, ::testing::ElementsAre(V(1, 5), V(1, 4), V(1, 1)));
}

/// The store can fail a write, applied or not, and works again once it is opened again.
TEST_F(ServerTest, AWriteWithUnknownOutcomeIsResolvedByLoadingTheStore) {
  for (auto fault : {MemoryStore::Fault::kFailApplied, MemoryStore::Fault::kFailNotApplied}) {
    MemoryStoreData data;
    std::atomic<bool> fail{false};
    auto opener = [&]() -> Result<std::unique_ptr<MetaStore>> {
      return std::unique_ptr<MetaStore>(std::make_unique<MemoryStore>(
          data, [&] { return fail.exchange(false) ? fault : MemoryStore::Fault::kNone; }));
    };
    server_.reset();
    server_ = *CoordinatorServer::Start(config_, opener, Clock::Real());
    FakeAgent a(server_->endpoint(), "a");
    Attach(a);
    ASSERT_TRUE(a.Join("gpt", "run-1", 0, 1).has_value());
    const uint64_t before = epoch();
    fail = true;
    Status status = a.Hold(before, {MakeReplica("gpt", V(1, 1), 0, 1, Tier::kMemory)});
    EXPECT_EQ(status.code(), ErrorCode::kUnavailable) << status.ToString();
    ASSERT_TRUE(Eventually([&] { return a.End().has_value(); }));
    // No directive depends on a write whose outcome is unknown.
    EXPECT_EQ(a.StateOf("gpt").committed[Tier::kMemory], std::nullopt);
    ASSERT_TRUE(Eventually([&] { return epoch() > before; }));
    Attach(a);
    ASSERT_TRUE(Eventually([&] { return a.StateOf("gpt").committed[Tier::kMemory] == V(1, 1); }));
    EXPECT_EQ(a.ListVersions("gpt").versions_size(), 1);
    a.Detach();
    server_.reset();
  }
}

TEST_F(ServerTest, ConfigurationErrorsNameTheProblem) {
  auto refused = [&](CoordinatorConfig config) {
    auto server = CoordinatorServer::Start(config, Clock::Real());
    EXPECT_FALSE(server.has_value());
    return server ? Status() : server.error();
  };
  CoordinatorConfig other = config_;
  other.data_dir = dir_ + "/other";
  EXPECT_THAT(refused(other).message(), HasSubstr("in use by another process"));
  CoordinatorConfig same_data = config_;
  same_data.listen = "unix:" + dir_ + "/d.sock";
  EXPECT_THAT(refused(same_data).message(), HasSubstr("in use by another coordinator"));
  server_.reset();
  CoordinatorConfig renamed = config_;
  renamed.cluster = "prod";
  EXPECT_THAT(refused(renamed).message(), HasSubstr("belongs to cluster 'test'"));
  CoordinatorConfig label = renamed;
  label.cluster = "test";
  label.peers_domain_label = "a b";
  EXPECT_THAT(refused(label).message(), HasSubstr("peers.domain_label 'a b'"));
  renamed.cluster = "../x";
  EXPECT_EQ(refused(renamed).code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace holdfast::coord
