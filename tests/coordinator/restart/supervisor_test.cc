#include "tests/coordinator/restart/supervisor_fixture.h"

namespace holdfast::coord {
namespace {
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A report may name ranks that are not placed on the node: of a larger world, or of another node.
TEST_F(SupervisorTest, MisplacedWorkersDoNotCount) {
  StartAndRun();
  const std::string run_id = runs_["gpt"].run_id();
  const auto report = [&](const std::string& node, uint32_t rank, int exit_code) {
    workers_[node].push_back({"gpt", run_id, Rank{rank}, WorkerPhase::kEnded, 7, exit_code, 0, 0});
    Report(node);
  };
  report("n0", 900'000, 1);  // beyond the world
  report("n1", 4, 1);
  report("n1", 3, 1);  // n3's
  Pass(milliseconds(500));
  EXPECT_EQ(Phase(), RunPhase::kRunning);
  EXPECT_TRUE(incidents_.empty());
  // Nor does the run finish because misplaced workers exited with 0.
  for (const uint32_t rank : {5U, 6U, 7U, 8U}) report("n2", rank, 0);
  Pass(milliseconds(500));
  EXPECT_EQ(Phase(), RunPhase::kRunning);
}

/// A rank that a report names twice counts once.
TEST_F(SupervisorTest, ARankCountsOnceForTheStart) {
  for (const char* node : {"n0", "n1", "n2", "n3"}) Attach(node);
  Start();
  for (const char* node : {"n0", "n1", "n2"}) ApplyDirective(node);
  workers_["n0"].push_back(workers_["n0"].front());
  Report("n0");
  EXPECT_EQ(Phase(), RunPhase::kStarting);
}

TEST_F(SupervisorTest, EachNodeGetsItsRanks) {
  for (const char* node : {"n2", "n0", "n1"}) Attach(node);
  RunRequested wanted;
  wanted.spec.job = "gpt";
  wanted.spec.command = {"train"};
  wanted.spec.nodes = 2;
  wanted.spec.ranks_per_node = 8;
  Apply(wanted);
  ASSERT_EQ(directives_.size(), 2U);
  const SetWorkers& directive = directives_["n1"];
  EXPECT_EQ(directive.run_id, "run-1.1");
  EXPECT_EQ(directive.first_rank, Rank{8});
  EXPECT_EQ(directive.ranks, 8U);
  EXPECT_EQ(directive.world, 16U);
  EXPECT_EQ(directive.node_rank, 1U);
  EXPECT_EQ(directive.master_address, "10.0.0.0");
  EXPECT_EQ(directive.master_port, directives_["n0"].master_port);
}

TEST_F(SupervisorTest, WaitsForNodesAndSpares) {
  Attach("n0");
  Start(2, 1);
  EXPECT_TRUE(reply_.ok());
  EXPECT_EQ(Phase(), RunPhase::kWaiting);
  EXPECT_THAT(runs_["gpt"].why, HasSubstr("2 more nodes"));
  Attach("n1");
  EXPECT_EQ(Phase(), RunPhase::kWaiting);
  Attach("n2");
  EXPECT_EQ(Phase(), RunPhase::kStarting);
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n1"));
}

TEST_F(SupervisorTest, AJobThatRunsIsNotStartedTwice) {
  StartAndRun();
  Start();
  EXPECT_EQ(reply_.code(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(runs_["gpt"].serial, 1U);
}

TEST_F(SupervisorTest, TheFirstToDieIsTheCauseAndAllStartAgainInTheirPlaces) {
  StartAndRun();
  // Reported in another order than they died.
  EndWorker("n3", 3, 0, 5);
  EXPECT_EQ(Phase(), RunPhase::kRunning) << "others may have died before";
  EndWorker("n1", 0, SIGKILL, 20);
  Pass(milliseconds(200));
  ASSERT_EQ(incidents_.size(), 1U);
  const IncidentRecord& incident = incidents_.begin()->second;
  EXPECT_EQ(incident.kind, "worker died");
  EXPECT_THAT(incident.ranks, ElementsAre(Rank{1}));
  EXPECT_THAT(incident.nodes, ElementsAre("n1"));
  EXPECT_THAT(incident.what, HasSubstr("SIGKILL"));
  EXPECT_THAT(incident.evidence[0], HasSubstr("last lines of n1"));
  EXPECT_THAT(incident.evidence[1], HasSubstr("rank 3"));
  EXPECT_EQ(runs_["gpt"].run_id(), "run-1.2");
  EXPECT_EQ(directives_["n1"].run_id, "run-1.2");
  EXPECT_EQ(directives_["n1"].first_rank, Rank{1});
  EXPECT_EQ(directives_["n1"].restarts, 1U);
}

TEST_F(SupervisorTest, TheFirstRankToExitOnItsOwnIsTheCause) {
  StartAndRun();
  EndWorker("n1", 1, 0, 5);
  EndWorker("n3", 1, 0, 20);
  EndWorker("n2", 1, 0, 10);
  Pass(milliseconds(200));
  ASSERT_EQ(incidents_.size(), 1U);
  const IncidentRecord& incident = incidents_.begin()->second;
  EXPECT_THAT(incident.ranks, ElementsAre(Rank{3}));
  EXPECT_THAT(incident.nodes, ElementsAre("n3"));
  EXPECT_THAT(incident.evidence[1], HasSubstr("rank 2 ended with exit code 1, 10 ms later"));
  EXPECT_THAT(incident.evidence[2], HasSubstr("rank 1 ended with exit code 1, 15 ms later"));
}

TEST_F(SupervisorTest, AnIncidentIsClosedByTheFirstCommitAndHasAllTimes) {
  StartAndRun();
  EndWorker("n1", 0, SIGKILL, 20);
  Pass(milliseconds(200));
  Pass(milliseconds(100));
  EXPECT_EQ(incidents_[1].state, IncidentState::kOpen);
  EXPECT_EQ(incidents_[1].stop_ms, std::nullopt);
  ApplyDirectives();
  EXPECT_GE(incidents_[1].stop_ms, 300);
  EXPECT_GE(incidents_[1].place_ms, incidents_[1].stop_ms);
  EXPECT_EQ(incidents_[1].restore_ms, std::nullopt) << "placing ends before restoring";
  Pass(milliseconds(100));
  NodeReported sealed;
  sealed.node = "n0";
  sealed.agent_start = 1;
  sealed.workers = workers_["n0"];
  sealed.replicas = {{"gpt", {Incarnation{2}, Step{13}}, Rank{0}, 4}};
  Observe(sealed);
  Progress(Incarnation{3}, 12);
  const IncidentRecord& incident = incidents_[1];
  EXPECT_EQ(incident.state, IncidentState::kRecovered);
  EXPECT_EQ(incident.restored, (VersionId{Incarnation{2}, Step{11}}));
  EXPECT_EQ(incident.lost_steps, 2);
  EXPECT_GE(incident.detect_ms, 20);
  EXPECT_GE(incident.restore_ms, *incident.place_ms + 100);
  EXPECT_GE(incident.first_step_ms, incident.restore_ms);
}

TEST_F(SupervisorTest, AnAgentThatComesBackInTimeCostsNothing) {
  StartAndRun();
  LoseStream("n2");
  Lose("n2");
  Pass(milliseconds(1000));
  EXPECT_TRUE(incidents_.empty());
  lost_.clear();
  Attach("n2");
  Pass(milliseconds(5000));
  EXPECT_TRUE(incidents_.empty());
  EXPECT_EQ(Phase(), RunPhase::kRunning);
  EXPECT_EQ(directives_["n2"].run_id, "run-1.1") << "the directive is repeated";
}

TEST_F(SupervisorTest, ALostNodeIsReplacedAFixedTimeAfterItsLastMessage) {
  StartAndRun();
  Attach("n9");
  // The stream stays open, so the node is lost when its lease of one second ends.
  Pass(milliseconds(1000));
  Lose("n2");
  Pass(milliseconds(490));
  EXPECT_TRUE(incidents_.empty());
  Pass(milliseconds(20));
  ASSERT_EQ(incidents_.size(), 1U);
  EXPECT_EQ(incidents_[1].kind, "node lost");
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n1", "n9", "n3"));
}

/// This is how a stopped agent or a frozen machine behaves, which may continue later.
TEST_F(SupervisorTest, ASilentNodeWithAnOpenStreamGetsMoreTime) {
  StartAndRun();
  Attach("n9");
  Pass(milliseconds(1000));
  Silence("n2");
  Pass(milliseconds(6000));
  EXPECT_TRUE(incidents_.empty());
  lost_.clear();
  Attach("n2");
  Pass(milliseconds(500));
  EXPECT_TRUE(incidents_.empty());
  Silence("n2");
  Pass(milliseconds(9'000));
  EXPECT_TRUE(incidents_.empty());
  Pass(milliseconds(1'000));
  ASSERT_EQ(incidents_.size(), 1U);
  EXPECT_EQ(incidents_[1].kind, "node lost");
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n1", "n9", "n3"));
}

TEST_F(SupervisorTest, NodesThatAreLostTogetherGetMoreTime) {
  StartAndRun();
  Lose("n1");
  Lose("n2");
  Pass(milliseconds(6000));
  EXPECT_TRUE(incidents_.empty());
  lost_.clear();
  Attach("n1");
  Attach("n2");
  Pass(milliseconds(500));
  EXPECT_TRUE(incidents_.empty());
  // A launch that has failed anyway does not wait for a node.
  Lose("n1");
  Lose("n2");
  EndWorker("n0", 1, 0);
  Pass(milliseconds(200));
  ASSERT_EQ(incidents_.size(), 1U);
  EXPECT_EQ(incidents_[1].kind, "node lost");
}

TEST_F(SupervisorTest, NoNodeIsBlamedForALeaseAfterTheCoordinatorWasPaused) {
  StartAndRun();
  Attach("n9");
  Lose("n2");
  now_ += milliseconds(5000);
  Observe(Tick{.resumed = true});
  EXPECT_TRUE(incidents_.empty());
  Report("n0");  // every event checks the deadlines
  Pass(milliseconds(2900));
  EXPECT_TRUE(incidents_.empty());
  Pass(milliseconds(200));
  ASSERT_EQ(incidents_.size(), 1U);
  EXPECT_EQ(incidents_[1].kind, "node lost");
}

TEST_F(SupervisorTest, ReplicasOfJobsThatNeverStartedAreIgnored) {
  StartAndRun();
  NodeReported event;
  event.node = "n0";
  event.agent_start = 1;
  event.workers = workers_["n0"];
  event.replicas = {{"gpt", {Incarnation{77}, Step{999}}, Rank{0}, 4},
                    {"stranger", {Incarnation{1}, Step{1}}, Rank{0}, 4}};
  Observe(event);
  Progress(Incarnation{3}, 12);  // decides for 2-11
  EndWorker("n1", 0, SIGKILL);
  Pass(milliseconds(200));
  Progress(Incarnation{4}, 13);
  EXPECT_GE(incidents_[1].lost_steps, 0);
  EXPECT_LT(incidents_[1].lost_steps, 3) << "what was never sealed was not lost";
}

TEST_F(SupervisorTest, ALostNodeGetsMoreTimeWhileOthersSealVersions) {
  StartAndRun();
  uint64_t step = 100;
  const auto seal = [&] {
    NodeReported event;
    event.node = "n0";
    event.agent_start = 1;
    event.workers = workers_["n0"];
    event.replicas.push_back({"gpt", {Incarnation{1}, Step{++step}}, Rank{0}, 4, Tier::kMemory});
    Observe(event);
  };
  LoseStream("n2");
  Lose("n2");
  for (int i = 0; i < 10; ++i) {
    seal();
    Pass(milliseconds(1000));
  }
  EXPECT_TRUE(incidents_.empty()) << "rank 2 takes part in every step";
  lost_.clear();
  Attach("n2");
  LoseStream("n2");
  Lose("n2");
  seal();
  Pass(milliseconds(1400));
  EXPECT_TRUE(incidents_.empty());
  Pass(milliseconds(200));
  ASSERT_EQ(incidents_.size(), 1U) << "no version is sealed any more";
  EXPECT_EQ(incidents_[1].kind, "node lost");
}

TEST_F(SupervisorTest, ALostNodeIsReplacedAfterAMinuteAlthoughOthersSealVersions) {
  StartAndRun();
  Lose("n2");
  uint64_t step = 100;
  while (incidents_.empty() && step < 200) {
    NodeReported event;
    event.node = "n0";
    event.agent_start = 1;
    event.workers = workers_["n0"];
    event.replicas.push_back({"gpt", {Incarnation{1}, Step{++step}}, Rank{0}, 4, Tier::kMemory});
    Observe(event);
    Pass(milliseconds(1000));
  }
  EXPECT_EQ(step, 160U);
  EXPECT_EQ(incidents_.size(), 1U);
}

TEST_F(SupervisorTest, ALostNodeIsBlamedRatherThanTheRanksThatMissIt) {
  StartAndRun();
  Attach("n9");
  LoseStream("n2");
  EndWorker("n1", 3, 0);
  EndWorker("n3", 3, 0);
  Pass(milliseconds(300));
  EXPECT_TRUE(incidents_.empty()) << "n2 may be the cause";
  Lose("n2");
  ASSERT_EQ(incidents_.size(), 1U);
  EXPECT_EQ(incidents_[1].kind, "node lost");
  EXPECT_THAT(incidents_[1].nodes, ElementsAre("n2"));
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n1", "n9", "n3"));
  EXPECT_EQ(directives_["n9"].first_rank, Rank{2});
  EXPECT_THAT(incidents_[1].plan, HasSubstr("n9 for n2"));
}

TEST_F(SupervisorTest, WithoutASpareTheJobWaitsAndTheOthersStop) {
  StartAndRun();
  Lose("n2");
  Pass(milliseconds(2000));
  EXPECT_EQ(Phase(), RunPhase::kWaiting);
  EXPECT_EQ(directives_["n0"].ranks, 0U);
  ApplyDirectives();
  workers_["n2"].clear();
  lost_.clear();
  Attach("n2");
  EXPECT_EQ(Phase(), RunPhase::kStarting);
  EXPECT_EQ(directives_["n0"].run_id, "run-1.2");
  EXPECT_EQ(directives_["n2"].first_rank, Rank{2});
}

TEST_F(SupervisorTest, WorkersOfAnOldLaunchAreStoppedWhenTheirNodeComesBack) {
  StartAndRun();
  Attach("n9");
  Lose("n2");
  Pass(milliseconds(2000));
  ASSERT_EQ(runs_["gpt"].nodes[2], "n9");
  lost_.clear();
  directives_.erase("n2");
  Attach("n2");  // with its worker of the first launch
  ASSERT_EQ(directives_.count("n2"), 1U);
  EXPECT_EQ(directives_["n2"].ranks, 0U);
}

TEST_F(SupervisorTest, ARunFailsWhenItsRestartBudgetIsUsedUp) {
  for (const char* node : {"n0", "n1"}) Attach(node);
  RunRequested wanted;
  wanted.spec.job = "gpt";
  wanted.spec.command = {"false"};
  wanted.spec.nodes = 2;
  wanted.spec.restarts_max = 2;
  Apply(wanted);
  std::vector<int64_t> waits;
  for (int launch = 1; launch <= 3; ++launch) {
    ApplyDirectives();
    EndWorker("n0", 1, 0);
    const auto failed = now_;
    for (int i = 0; i < 200 && Phase() != RunPhase::kStarting && Phase() != RunPhase::kFailed;
         ++i) {
      Pass(milliseconds(50));
    }
    Pass(milliseconds(200));
    for (int i = 0; i < 200 && Phase() == RunPhase::kWaiting; ++i) Pass(milliseconds(50));
    waits.push_back(std::chrono::duration_cast<milliseconds>(now_ - failed).count());
  }
  EXPECT_EQ(Phase(), RunPhase::kFailed);
  EXPECT_EQ(incidents_.size(), 3U);
  EXPECT_EQ(incidents_[3].state, IncidentState::kGivenUp);
  EXPECT_THAT(incidents_[3].plan, HasSubstr("used up"));
  EXPECT_EQ(runs_["gpt"].restarts(), 2U);
  EXPECT_GE(waits[1], 1000) << "the second fruitless launch is followed by a pause";
  EXPECT_EQ(directives_["n1"].ranks, 0U);
}

TEST_F(SupervisorTest, ANodeThatBreaksLaunchAfterLaunchIsQuarantinedAndStaysThere) {
  for (const char* node : {"n0", "n1", "n9"}) Attach(node);
  Start(2);
  ApplyDirectives();
  Progress(Incarnation{2}, 10);
  for (int i = 0; i < 3; ++i) {
    ApplyDirectives();
    EndWorker("n1", 1, 0);
    for (int k = 0; k < 100; ++k) Pass(milliseconds(100));
  }
  ASSERT_EQ(quarantine_.count("n1"), 1U);
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n9"));

  Records records;
  for (const auto& [job, run] : runs_) records.runs.push_back(run);
  for (const auto& [node, record] : quarantine_) records.quarantine.push_back(record);
  supervisor_ = std::make_unique<Supervisor>(options_, records, Now());
  EXPECT_EQ(supervisor_->Quarantined().size(), 1U);
  Apply(QuarantineRequested{1, "n1", false, ""});
  EXPECT_TRUE(quarantine_.empty());
}

TEST_F(SupervisorTest, ADrainedNodeGetsNoWorkersAndItsRunLeavesWhenItMay) {
  for (const char* node : {"n0", "n1"}) Attach(node);
  Start(2);
  ApplyDirectives();
  Progress(Incarnation{2}, 10);
  Observe(Tick{}, {PutDrain{{"n1", "new fan", 1, true}}});
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n1"));
  Observe(Tick{}, {RunsMayLeave{"n1"}});
  EXPECT_EQ(Phase(), RunPhase::kRunning) << "no other node is free: the run would only stop";
  Attach("n9");
  Observe(Tick{}, {RunsMayLeave{"n1"}});
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n9"));
  EXPECT_EQ(runs_["gpt"].budget_used, 0U);
  EXPECT_TRUE(incidents_.empty());

  // A restarted coordinator does not place workers on the node either.
  Records records;
  records.drains = {{"n1", "new fan", 1, true}};
  supervisor_ = std::make_unique<Supervisor>(options_, records, Now());
  runs_.clear();
  for (const char* node : {"n0", "n1"}) Attach(node);
  Start(2);
  EXPECT_EQ(Phase(), RunPhase::kWaiting);
  Observe(Tick{}, {EraseDrain{"n1"}});
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n1"));
}

TEST_F(SupervisorTest, AJobThatFailsBeforeItsFirstSaveStopsWithItsLastLinesAndBlamesNoNode) {
  for (const char* node : {"n0", "n1", "n2", "n3"}) Attach(node);
  Start(3);
  std::set<std::string> blamed;
  for (int i = 0; i < 3; ++i) {
    ApplyDirectives();
    ASSERT_NE(Phase(), RunPhase::kFailed) << "after " << i << " failures";
    const std::string node = runs_["gpt"].nodes[static_cast<size_t>(i) % 3];
    blamed.insert(node);
    EndWorker(node, 1, 0);
    for (int k = 0; k < 100; ++k) Pass(milliseconds(100));
  }
  EXPECT_EQ(Phase(), RunPhase::kFailed);
  EXPECT_GE(blamed.size(), 2U);
  EXPECT_TRUE(quarantine_.empty());
  EXPECT_THAT(runs_["gpt"].why, HasSubstr("the cause is the job"));
  EXPECT_THAT(runs_["gpt"].why, HasSubstr("last lines of"));
  EXPECT_EQ(Newest().state, IncidentState::kGivenUp);
}

TEST_F(SupervisorTest, AJobThatFailsOnAllUsableNodesBlamesNone) {
  for (const char* node : {"n0", "n1"}) Attach(node);
  Start(2);
  for (int i = 0; i < 3; ++i) {
    ApplyDirectives();
    ASSERT_FALSE(HasEnded(Phase())) << "after " << i << " failures";
    EndWorker("n1", 1, 0);
    for (int k = 0; k < 100; ++k) Pass(milliseconds(100));
  }
  EXPECT_EQ(Phase(), RunPhase::kFailed);
  EXPECT_THAT(runs_["gpt"].why, HasSubstr("the cause is the job"));
  EXPECT_TRUE(quarantine_.empty()) << "no other node was tried, and nothing was saved on any";
}

TEST_F(SupervisorTest, BeforeTheFirstSaveAFailedWorkerIsTriedOnAnotherNode) {
  for (const char* node : {"n0", "n1", "n2"}) Attach(node);
  Start(2);
  ApplyDirectives();
  EndWorker("n1", 1, 0);
  Pass(milliseconds(200));
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n2"));
  ApplyDirectives();
  Progress(Incarnation{3}, 10);
  EXPECT_EQ(Phase(), RunPhase::kRunning);
  EXPECT_TRUE(quarantine_.empty());
}

TEST_F(SupervisorTest, ANodeThatKillsWorkersIsBlamedAlsoBeforeTheFirstSave) {
  for (const char* node : {"n0", "n1", "n2"}) Attach(node);
  Start(2);
  for (int i = 0; i < 3; ++i) {
    ApplyDirectives();
    EndWorker("n1", 0, SIGKILL);
    for (int k = 0; k < 100; ++k) Pass(milliseconds(100));
  }
  EXPECT_EQ(quarantine_.count("n1"), 1U);
  EXPECT_FALSE(HasEnded(Phase()));
}

TEST_F(SupervisorTest, TheSameExitOnSeveralNodesQuarantinesNoNode) {
  StartAndRun();
  const char* nodes[] = {"n1", "n2", "n1", "n1"};
  for (const char* node : nodes) {
    ApplyDirectives();
    EndWorker(node, 1, 0);
    for (int k = 0; k < 100; ++k) Pass(milliseconds(100));
  }
  EXPECT_TRUE(quarantine_.empty());
  EXPECT_EQ(Phase(), RunPhase::kFailed) << "no rank joined, whichever node it was";
  EXPECT_THAT(runs_["gpt"].why, HasSubstr("before a rank joined"));
}

TEST_F(SupervisorTest, ARefusedRestoreQuarantinesNoNode) {
  StartAndRun();
  for (uint64_t launch = 0; launch < 4; ++launch) {
    ApplyDirectives();
    LineageRecord lineage;
    lineage.job = "gpt";
    lineage.incarnation = Incarnation{10 + launch};
    lineage.run_id = runs_["gpt"].run_id();
    lineage.world = 4;
    Observe(Tick{}, {PutLineage{lineage, LineageChange::kOpened}});
    Observe(Tick{},
            {RestoreRefused{"gpt", lineage.incarnation, NotFoundError("1-10 lacks rank 1")}});
    EndWorker("n1", 1, 0);
    for (int k = 0; k < 100; ++k) Pass(milliseconds(100));
  }
  EXPECT_TRUE(quarantine_.empty());
  EXPECT_FALSE(HasEnded(Phase()));
  EXPECT_THAT(incidents_.rbegin()->second.evidence, Contains(HasSubstr("1-10 lacks rank 1")));
}

}  // namespace
}  // namespace holdfast::coord
