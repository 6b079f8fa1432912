#include "tests/coordinator/restart/supervisor_fixture.h"

namespace holdfast::coord {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(SupervisorTest, NewVersionsRefillTheRestartBudget) {
  RunRequested wanted;
  for (const char* node : {"n0", "n1", "n2", "n3"}) Attach(node);
  wanted.spec.job = "gpt";
  wanted.spec.command = {"train"};
  wanted.spec.nodes = 4;
  wanted.spec.restarts_max = 2;
  wanted.spec.refill_versions = 3;
  Apply(wanted);
  uint64_t step = 0;
  uint64_t incarnation = 2;
  const auto commit = [&](uint64_t at) {
    VersionRecord version;
    version.job = "gpt";
    version.version = {Incarnation{incarnation}, Step{at}};
    Observe(Tick{}, {PutVersion{version, TierBit(Tier::kMemory)}});
  };
  const auto fail = [&] {
    EndWorker("n1", 0, SIGKILL, 1);
    Pass(milliseconds(1));
    for (int i = 0; i < 100 && Phase() == RunPhase::kWaiting; ++i) Pass(milliseconds(100));
    if (Phase() == RunPhase::kFailed) return;
    ApplyDirectives();
    Progress(Incarnation{++incarnation}, ++step);
  };
  ApplyDirectives();
  Progress(Incarnation{incarnation}, ++step);
  for (int i = 0; i < 20; ++i) {
    fail();
    for (int k = 0; k < 2; ++k) commit(++step);
    ASSERT_EQ(Phase(), RunPhase::kRunning) << "after restart " << i;
  }
  EXPECT_EQ(runs_["gpt"].restarts(), 20U);
  // A restarted coordinator loads the used budget.
  fail();
  commit(step);  // trained again, not new
  commit(step);
  commit(step);
  Records records;
  for (const auto& [job, run] : runs_) records.runs.push_back(run);
  EXPECT_EQ(records.runs[0].budget_used, 1U);
  supervisor_ = std::make_unique<Supervisor>(options_, records, Now());
  for (const char* node : {"n0", "n1", "n2", "n3"}) Attach(node);
  for (int i = 0; i < 2; ++i) {
    EndWorker("n1", 0, SIGKILL, 1);
    for (int k = 0; k < 100; ++k) Pass(milliseconds(100));
    ApplyDirectives();
  }
  EXPECT_EQ(Phase(), RunPhase::kFailed);
  EXPECT_THAT(runs_["gpt"].why, HasSubstr("all 2 restarts are used up"));
}

FaultDetected HangOf(int64_t lasting_ms, bool stuck) {
  FaultDetected fault;
  fault.job = "gpt";
  fault.incarnation = Incarnation{2};
  fault.kind = stuck ? "communication hang" : "non-communication hang";
  fault.what = "rank 1 does not come";
  fault.ranks = {Rank{1}};
  fault.nodes = {"n1"};
  fault.action = FaultAction::kRestartElsewhere;
  fault.hang = true;
  fault.stuck = stuck;
  fault.lasting_ms = lasting_ms;
  fault.step = 40;
  return fault;
}

TEST_F(SupervisorTest, AHangIsNotedAtOnceAndRestartedWhenItLasts) {
  StartAndRun();
  for (int64_t seconds = 5; seconds < 600; ++seconds) Apply(HangOf(seconds * 1000, false));
  ASSERT_EQ(incidents_.size(), 1U);
  EXPECT_EQ(Newest().state, IncidentState::kNoted);
  EXPECT_THAT(Newest().plan, HasSubstr("600 s"));
  EXPECT_EQ(runs_["gpt"].restarts(), 0U);
  Apply(HangOf(600'000, false));
  EXPECT_EQ(runs_["gpt"].restarts(), 1U);
  EXPECT_EQ(Newest().state, IncidentState::kOpen);
  EXPECT_EQ(Newest().detect_ms, 600'000);
}

TEST_F(SupervisorTest, ASuspicionIsNotedAndRestartsNothing) {
  StartAndRun();
  FaultDetected fault = HangOf(5'000'000, false);
  fault.suspected = true;
  Apply(fault);
  ASSERT_EQ(incidents_.size(), 1U);
  EXPECT_EQ(Newest().state, IncidentState::kNoted);
  EXPECT_EQ(runs_["gpt"].restarts(), 0U);
  fault.suspected = false;
  Apply(fault);
  EXPECT_EQ(runs_["gpt"].restarts(), 1U);
}

TEST_F(SupervisorTest, AHangWithoutPossibleProgressIsRestartedSooner) {
  StartAndRun();
  Apply(HangOf(59'000, true));
  EXPECT_EQ(runs_["gpt"].restarts(), 0U);
  Apply(HangOf(60'000, true));
  EXPECT_EQ(runs_["gpt"].restarts(), 1U);
}

TEST_F(SupervisorTest, AHangMustLastLongerThanTheLongestPauseSoFar) {
  StartAndRun();
  FaultDetected fault = HangOf(800'000, false);
  fault.longest_pause_ms = 900'000;
  Apply(fault);
  EXPECT_EQ(runs_["gpt"].restarts(), 0U);
  fault.lasting_ms = 900'001;
  Apply(fault);
  EXPECT_EQ(runs_["gpt"].restarts(), 1U);
}

TEST_F(SupervisorTest, ASecondHangAtTheSameStepGetsTwiceThePatience) {
  StartAndRun();
  Apply(HangOf(600'000, false));
  ASSERT_EQ(runs_["gpt"].restarts(), 1U);
  ApplyDirectives();
  Progress(Incarnation{3}, 20);
  FaultDetected again = HangOf(900'000, false);
  again.incarnation = Incarnation{3};
  Apply(again);
  EXPECT_EQ(runs_["gpt"].restarts(), 1U) << "an evaluation of 15 minutes would end the job";
  again.step = 41;
  Apply(again);
  EXPECT_EQ(runs_["gpt"].restarts(), 2U) << "a hang at another step is another hang";
}

TEST_F(SupervisorTest, ARunHasItsOwnPatienceAndAction) {
  for (const char* node : {"n0", "n1", "n2", "n3"}) Attach(node);
  RunRequested wanted;
  wanted.spec.job = "gpt";
  wanted.spec.command = {"train"};
  wanted.spec.nodes = 4;
  wanted.spec.hang_after_ms = 5000;
  Apply(wanted);
  ApplyDirectives();
  Progress(Incarnation{2}, 10);
  Apply(HangOf(5000, false));
  EXPECT_EQ(runs_["gpt"].restarts(), 1U);
  EXPECT_EQ(incidents_.size(), 1U);

  for (const auto action : {DetectAction::kAlert, DetectAction::kOff}) {
    Apply(StopRequested{1, "gpt", 0});
    Pass(milliseconds(100));
    ASSERT_TRUE(HasEnded(Phase()));
    incidents_.clear();
    wanted.spec.detect_action = action;
    Apply(wanted);
    ApplyDirectives();
    Progress(Incarnation{action == DetectAction::kAlert ? 7U : 8U}, 10);
    FaultDetected fault = HangOf(5'000'000, true);
    fault.incarnation = Incarnation{action == DetectAction::kAlert ? 7U : 8U};
    Apply(fault);
    EXPECT_EQ(runs_["gpt"].restarts(), 0U);
    EXPECT_EQ(incidents_.size(), action == DetectAction::kAlert ? 1U : 0U);
    EndWorker("n1", 0, SIGKILL);
    Pass(milliseconds(200));
    EXPECT_EQ(runs_["gpt"].restarts(), 1U) << "a worker that ends leads to a restart all the same";
    ApplyDirectives();
  }
}

TEST_F(SupervisorTest, TheRunsOwnPatienceAppliesToSuspicionsToo) {
  for (const char* node : {"n0", "n1", "n2", "n3"}) Attach(node);
  RunRequested wanted;
  wanted.spec.job = "gpt";
  wanted.spec.command = {"train"};
  wanted.spec.nodes = 4;
  wanted.spec.hang_after_ms = 8000;
  Apply(wanted);
  ApplyDirectives();
  Progress(Incarnation{2}, 10);
  FaultDetected fault = HangOf(7000, false);
  fault.suspected = true;
  Apply(fault);
  EXPECT_EQ(runs_["gpt"].restarts(), 0U);
  fault.lasting_ms = 8000;
  Apply(fault);
  EXPECT_EQ(runs_["gpt"].restarts(), 1U);
}

FaultDetected DeadRank(uint64_t incarnation) {
  FaultDetected fault;
  fault.job = "slurm";
  fault.incarnation = Incarnation{incarnation};
  fault.kind = "dead";
  fault.what = "rank 5 is dead";
  fault.action = FaultAction::kRestartElsewhere;
  fault.dead = true;
  return fault;
}

TEST_F(SupervisorTest, AFailedRestartCommandIsRunAgainUntilTheLastAttempt) {
  options_.has_restart_command = true;
  options_.command_attempts = 3;
  supervisor_ = std::make_unique<Supervisor>(options_, Records(), Now());
  Apply(DeadRank(4));
  EXPECT_EQ(restart_commands_.size(), 1U);
  for (int i = 0; i < 100; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(restart_commands_.size(), 1U) << "it still runs";
  Apply(RestartCommandEnded{1, false, "ended with exit code 7"});
  EXPECT_THAT(incidents_[1].plan, HasSubstr("exit code 7"));
  EXPECT_THAT(incidents_[1].plan, HasSubstr("10 s"));
  for (int i = 0; i < 9; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(restart_commands_.size(), 1U);
  Pass(milliseconds(1000));
  EXPECT_EQ(restart_commands_.size(), 2U);
  Apply(RestartCommandEnded{1, false, "did not end within 60000 ms and was killed"});
  for (int i = 0; i < 20; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(restart_commands_.size(), 3U);
  Apply(RestartCommandEnded{1, false, "ended with exit code 7"});
  EXPECT_EQ(incidents_[1].state, IncidentState::kGivenUp);
  EXPECT_THAT(incidents_[1].plan, HasSubstr("by hand"));
  EXPECT_EQ(incidents_[1].evidence.size(), 3U);
  for (int i = 0; i < 1000; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(restart_commands_.size(), 3U);
}

TEST_F(SupervisorTest, ARestartCommandThatSucceedsOrIsNotNeededIsNotRunAgain) {
  options_.has_restart_command = true;
  supervisor_ = std::make_unique<Supervisor>(options_, Records(), Now());
  Apply(DeadRank(4));
  Apply(RestartCommandEnded{1, true, "ended with exit code 0"});
  EXPECT_THAT(incidents_[1].plan, HasSubstr("exit code 0"));
  for (int i = 0; i < 1000; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(restart_commands_.size(), 1U) << "a batch queue may be slow";

  // The job starts again before the next attempt.
  Apply(DeadRank(6));
  ASSERT_EQ(restart_commands_.size(), 2U);
  Apply(RestartCommandEnded{2, false, "ended with exit code 1"});
  LineageRecord lineage;
  lineage.job = "slurm";
  lineage.incarnation = Incarnation{7};
  lineage.run_id = "by-hand";
  Observe(Tick{}, {PutLineage{lineage, LineageChange::kOpened}});
  for (int i = 0; i < 1000; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(restart_commands_.size(), 2U);

  // An operator ended the job on purpose.
  Apply(DeadRank(8));
  ASSERT_EQ(restart_commands_.size(), 3U);
  Apply(RestartCommandEnded{3, false, "ended with exit code 1"});
  Apply(AcknowledgeRequested{9, 3, "the job was cancelled"});
  EXPECT_TRUE(reply_.ok());
  EXPECT_EQ(incidents_[3].state, IncidentState::kAcknowledged);
  for (int i = 0; i < 1000; ++i) Pass(milliseconds(1000));
  Apply(DeadRank(8));
  EXPECT_EQ(restart_commands_.size(), 3U);
  Apply(AcknowledgeRequested{9, 77, ""});
  EXPECT_EQ(reply_.code(), ErrorCode::kNotFound);
}

TEST_F(SupervisorTest, ARestartCommandHasACoolDown) {
  options_.has_restart_command = true;
  supervisor_ = std::make_unique<Supervisor>(options_, Records(), Now());
  Apply(DeadRank(4));
  Apply(RestartCommandEnded{1, true, "ended with exit code 0"});
  Pass(milliseconds(1000));
  Apply(DeadRank(5));
  EXPECT_EQ(restart_commands_.size(), 1U);
  EXPECT_THAT(incidents_[2].plan, HasSubstr("29 s"));
  for (int i = 0; i < 29; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(restart_commands_.size(), 2U);
}

TEST_F(SupervisorTest, ARestartCommandWithUnknownResultIsRunAgainByTheNextCoordinator) {
  options_.has_restart_command = true;
  supervisor_ = std::make_unique<Supervisor>(options_, Records(), Now());
  Apply(DeadRank(4));
  Records records;
  records.incidents.push_back(incidents_[1]);
  LineageRecord lineage;
  lineage.job = "slurm";
  lineage.incarnation = Incarnation{4};
  records.lineages.push_back(lineage);
  supervisor_ = std::make_unique<Supervisor>(options_, records, Now());
  Apply(DeadRank(4));
  EXPECT_EQ(restart_commands_.size(), 1U) << "the watcher reports the same fault again";
  for (int i = 0; i < 40; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(restart_commands_.size(), 2U);
  Apply(RestartCommandEnded{1, true, "ended with exit code 0"});
  records.incidents[0] = incidents_[1];
  supervisor_ = std::make_unique<Supervisor>(options_, records, Now());
  for (int i = 0; i < 40; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(restart_commands_.size(), 2U);
}

TEST_F(SupervisorTest, AHangIsRestartedWithoutItsNodeWhenThereIsAnother) {
  StartAndRun();
  Attach("n9");
  FaultDetected fault;
  fault.job = "gpt";
  fault.incarnation = Incarnation{2};
  fault.kind = "non-communication hang";
  fault.what = "rank 1 does not come";
  fault.ranks = {Rank{1}};
  fault.nodes = {"n1"};
  fault.action = FaultAction::kRestartElsewhere;
  fault.since_ms = 6000;
  Apply(fault);
  EXPECT_EQ(incidents_[1].detect_ms, 6000);
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n9", "n2", "n3"));
  EXPECT_EQ(directives_["n1"].ranks, 0U);
  EXPECT_TRUE(quarantine_.empty());
  // The same fault of the previous launch is ignored.
  Apply(fault);
  EXPECT_EQ(incidents_.size(), 1U);
}

TEST_F(SupervisorTest, ARollbackByTheTrainersStaysInTheRun) {
  StartAndRun();
  Progress(Incarnation{3}, 8, "+b7c1");
  FaultDetected fault;
  fault.job = "gpt";
  fault.incarnation = Incarnation{2};
  fault.kind = "non-communication hang";
  fault.what = "rank 1 does not come";
  fault.ranks = {Rank{1}};
  fault.nodes = {"n1"};
  fault.action = FaultAction::kRestart;
  Apply(fault);
  EXPECT_EQ(Phase(), RunPhase::kRunning) << "the fault is of an incarnation that is over";
  fault.incarnation = Incarnation{3};
  Apply(fault);
  EXPECT_NE(Phase(), RunPhase::kRunning);
}

TEST_F(SupervisorTest, AnotherStartOfTheJobIsNotPartOfTheRun) {
  StartAndRun();
  Progress(Incarnation{3}, 8, "1");
  FaultDetected fault;
  fault.job = "gpt";
  fault.incarnation = Incarnation{3};
  fault.kind = "non-communication hang";
  fault.action = FaultAction::kRestart;
  Apply(fault);
  EXPECT_EQ(Phase(), RunPhase::kRunning);
}

TEST_F(SupervisorTest, AFaultThatIsOnlyNotedChangesNothing) {
  StartAndRun();
  const int directives = directives_sent_;
  FaultDetected fault;
  fault.job = "gpt";
  fault.incarnation = Incarnation{2};
  fault.kind = "communication slow";
  Apply(fault);
  EXPECT_EQ(incidents_[1].state, IncidentState::kNoted);
  EXPECT_EQ(Phase(), RunPhase::kRunning);
  EXPECT_EQ(directives_sent_, directives);
}

TEST_F(SupervisorTest, TheRestartCommandRunsOncePerFault) {
  options_.has_restart_command = true;
  supervisor_ = std::make_unique<Supervisor>(options_, Records(), Now());
  FaultDetected fault;
  fault.job = "slurm";
  fault.incarnation = Incarnation{4};
  fault.kind = "dead";
  fault.what = "rank 5 is dead";
  fault.action = FaultAction::kRestartElsewhere;
  fault.dead = true;
  Apply(fault);
  Apply(fault);
  EXPECT_THAT(restart_commands_, ElementsAre("rank 5 is dead"));
  EXPECT_EQ(incidents_[1].state, IncidentState::kOpen);
  VersionRecord version;
  version.job = "slurm";
  version.version = {Incarnation{5}, Step{9}};
  Observe(Tick{}, {PutVersion{version, TierBit(Tier::kMemory)}});
  EXPECT_EQ(incidents_[1].state, IncidentState::kRecovered);
}

TEST_F(SupervisorTest, ABrokenGpuIsNamedWhenARankDiesAndItsNodeIsAvoided) {
  Attach("n4");
  StartAndRun();
  FailGpu("n2", 79);
  EXPECT_EQ(Phase(), RunPhase::kRunning) << "the error alone stops no rank";
  ASSERT_EQ(incidents_.size(), 1U);
  EXPECT_EQ(Newest().state, IncidentState::kNoted);
  EXPECT_EQ(Newest().what, "Xid 79 on GPU 3 of node n2: GPU has fallen off the bus");
  EXPECT_THAT(supervisor_->Suspects(), ElementsAre("n2"));
  Pass(milliseconds(2500));
  // Another rank is killed as a consequence; the rank of this GPU exits on its own, later.
  workers_["n1"].front().phase = WorkerPhase::kEnded;
  workers_["n1"].front().signal = SIGABRT;
  workers_["n2"].front().phase = WorkerPhase::kEnded;
  workers_["n2"].front().exit_code = 1;
  Report("n2");
  Report("n1");
  EXPECT_EQ(Newest().kind, "worker died");
  EXPECT_THAT(Newest().nodes, ElementsAre("n2"));
  EXPECT_EQ(Newest().evidence.front(),
            "2.5 s before: Xid 79 on GPU 3 of node n2: GPU has fallen off the bus");
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n1", "n4", "n3"));
  EXPECT_THAT(Newest().plan, HasSubstr("n4 for n2"));
}

TEST_F(SupervisorTest, ABrokenGpuIsEvidenceOfAHangAndCostsItsNodeThePlace) {
  Attach("n4");
  StartAndRun();
  FailGpu("n1", 48);
  FaultDetected hang;
  hang.job = "gpt";
  hang.incarnation = Incarnation{2};
  hang.kind = "communication hang";
  hang.action = FaultAction::kRestart;  // no node is blamed
  Apply(hang);
  EXPECT_THAT(Newest().evidence.front(), HasSubstr("Xid 48 on GPU 3 of node n1"));
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n4", "n2", "n3"));
}

TEST_F(SupervisorTest, AGpuErrorOfTheProgramIsOnlyNoted) {
  Attach("n4");
  StartAndRun();
  FailGpu("n2", 31, 1);
  FailGpu("n2", 31, 2);
  FailGpu("n2", 31, 2);
  EXPECT_EQ(incidents_.size(), 1U) << "a repetition opens no incident";
  EXPECT_TRUE(supervisor_->Suspects().empty());
  EndWorker("n1", 0, SIGSEGV);
  EXPECT_THAT(Newest().nodes, ElementsAre("n1")) << "an error of the program is no cause";
  EXPECT_EQ(std::count_if(Newest().evidence.begin(), Newest().evidence.end(),
                          [](const auto& one) { return one.find("Xid 31") != one.npos; }),
            2);
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n1", "n2", "n3"));
}

TEST_F(SupervisorTest, ASuspectNodeIsAvoidedUntilItIsReleasedUnlessThereIsNoOther) {
  StartAndRun();
  FailGpu("n2", 95);
  EndWorker("n2", 1, 0);
  Pass(milliseconds(200));
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n1", "n2", "n3")) << "there is no other";
  Attach("n4");
  QuarantineRequested release;
  release.node = "n2";
  release.set = false;
  Apply(release);
  EXPECT_TRUE(supervisor_->Suspects().empty());
  FailGpu("n0", 79, 1);
  Pass(std::chrono::hours(25));
  EXPECT_TRUE(supervisor_->Suspects().empty()) << "the suspicion expires after a day";
  FailGpu("n7", 79);  // an unknown node
  EXPECT_TRUE(supervisor_->Suspects().empty());
}

TEST_F(SupervisorTest, ASuspectNodeStaysSuspectAfterARestart) {
  Attach("n4");
  StartAndRun();
  FailGpu("n2", 79);
  FailGpu("n3", 79);
  const auto start_again = [this] {
    Records records;
    for (const auto& [job, run] : runs_) records.runs.push_back(run);
    for (const auto& [id, incident] : incidents_) records.incidents.push_back(incident);
    for (const auto& [node, record] : suspects_) records.suspects.push_back(record);
    supervisor_ = std::make_unique<Supervisor>(options_, records, Now());
  };
  start_again();
  EXPECT_THAT(supervisor_->Suspects(), ElementsAre("n2", "n3"));
  Apply(QuarantineRequested{1, "n3", false, ""});
  EXPECT_TRUE(reply_.ok()) << reply_.ToString();
  start_again();
  EXPECT_THAT(supervisor_->Suspects(), ElementsAre("n2"));
  for (const char* node : {"n0", "n1", "n2", "n3", "n4"}) Attach(node);
  EndWorker("n2", 1, 0);
  Pass(milliseconds(200));
  EXPECT_THAT(Newest().evidence.front(), HasSubstr("Xid 79 on GPU 3 of node n2"));
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n1", "n4", "n3"));
  // A restart of the coordinator does not extend the day.
  Pass(std::chrono::hours(23));
  EXPECT_THAT(supervisor_->Suspects(), ElementsAre("n2"));
  start_again();
  Pass(std::chrono::hours(2));
  EXPECT_TRUE(supervisor_->Suspects().empty());
}

TEST_F(SupervisorTest, DamageIsNotedOnce) {
  StartAndRun();
  const Finding finding{"gpt", "n1", DataLossError("chunk 3 differs")};
  Observe(Tick{}, {finding});
  Observe(Tick{}, {finding});
  EXPECT_EQ(incidents_.size(), 1U);
  EXPECT_EQ(incidents_[1].kind, "damage");
  Pass(std::chrono::minutes(11));
  Observe(Tick{}, {finding});
  EXPECT_EQ(incidents_.size(), 2U);
}

TEST_F(SupervisorTest, StopsOnceDiskHasTheVersionOfMemory) {
  StartAndRun();
  Apply(StopRequested{1, "gpt", 10'000});
  EXPECT_EQ(Phase(), RunPhase::kStopping);
  EXPECT_EQ(directives_["n0"].ranks, 1U) << "the workers continue";
  VersionRecord version;
  version.job = "gpt";
  version.version = {Incarnation{2}, Step{9}};
  Observe(Tick{}, {PutVersion{version, TierBit(Tier::kDisk)}});
  EXPECT_EQ(Phase(), RunPhase::kStopping);
  version.version = {Incarnation{2}, Step{10}};
  Observe(Tick{}, {PutVersion{version, TierBit(Tier::kDisk)}});
  EXPECT_EQ(Phase(), RunPhase::kStopped);
  EXPECT_EQ(directives_["n0"].ranks, 0U);
}

TEST_F(SupervisorTest, StopsAtTheDeadlineWithoutTheVersionOnDisk) {
  StartAndRun();
  Apply(StopRequested{1, "gpt", 1000});
  Pass(milliseconds(900));
  EXPECT_EQ(Phase(), RunPhase::kStopping);
  Pass(milliseconds(200));
  EXPECT_EQ(Phase(), RunPhase::kStopped);
}

TEST_F(SupervisorTest, FinishesWhenEveryWorkerExitedWithZero) {
  StartAndRun();
  for (const char* node : {"n0", "n1", "n2"}) EndWorker(node, 0, 0);
  Pass(milliseconds(5000));
  EXPECT_EQ(Phase(), RunPhase::kRunning);
  EndWorker("n3", 0, 0);
  EXPECT_EQ(Phase(), RunPhase::kFinished);
  EXPECT_TRUE(incidents_.empty());
}

TEST_F(SupervisorTest, ARestartedCoordinatorContinuesTheRun) {
  StartAndRun();
  Records records;
  records.runs.push_back(runs_["gpt"]);
  supervisor_ = std::make_unique<Supervisor>(options_, records, Now());
  Pass(milliseconds(1000));
  for (const char* node : {"n0", "n1", "n2", "n3"}) Attach(node);
  Pass(milliseconds(5000));
  EXPECT_EQ(Phase(), RunPhase::kRunning);
  EXPECT_EQ(runs_["gpt"].run_id(), "run-1.1");
  EXPECT_TRUE(incidents_.empty());
}

TEST_F(SupervisorTest, ANodeThatDoesNotStartItsWorkersIsAvoided) {
  for (const char* node : {"n0", "n1", "n9"}) Attach(node);
  Start(2);
  ApplyDirective("n0");
  for (int i = 0; i < 30; ++i) {
    Pass(milliseconds(1000));
    Report("n0");
    Report("n1");
    Report("n9");
  }
  ASSERT_FALSE(incidents_.empty());
  EXPECT_EQ(incidents_[1].kind, "not started");
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n9"));
}

TEST_F(SupervisorTest, AWorkerThatCannotBeEndedCostsItsNodeThePlace) {
  StartAndRun();
  Attach("n9");
  workers_["n1"].front().phase = WorkerPhase::kStuck;
  Report("n1");
  Pass(milliseconds(200));
  EXPECT_EQ(incidents_[1].kind, "worker stuck");
  EXPECT_EQ(quarantine_.count("n1"), 1U);
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n9", "n2", "n3"));
}

}  // namespace
}  // namespace holdfast::coord
