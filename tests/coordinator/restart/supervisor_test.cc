#include "coordinator/restart/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace holdfast::coord {
namespace {
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A supervisor with nodes that do what they are told. State's part is played by the test.
class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() : supervisor_(std::make_unique<Supervisor>(options_, Records(), Now())) {}

  Instant Now() const { return {now_, wall_}; }
  void Pass(milliseconds time) {
    now_ += time;
    wall_ += time.count() * 1'000'000;
    Observe(Tick{});
  }

  /// Keeps what is stored, and gives orders to whom they are for.
  void Take(const std::vector<Effect>& effects) {
    for (const Effect& effect : effects) {
      if (const auto* put = std::get_if<PutRun>(&effect)) runs_[put->record.spec.job] = put->record;
      if (const auto* put = std::get_if<PutIncident>(&effect)) {
        incidents_[put->record.id] = put->record;
      }
      if (const auto* put = std::get_if<PutQuarantine>(&effect)) {
        quarantine_[put->record.node] = put->record;
      }
      if (const auto* erase = std::get_if<EraseQuarantine>(&effect)) {
        quarantine_.erase(erase->node);
      }
      if (const auto* put = std::get_if<PutSuspect>(&effect)) {
        suspects_[put->record.node] = put->record;
      }
      if (const auto* erase = std::get_if<EraseSuspect>(&effect)) suspects_.erase(erase->node);
      if (const auto* send = std::get_if<Send>(&effect)) {
        const auto* order = std::get_if<WorkersOrder>(&send->directive);
        ASSERT_NE(order, nullptr);
        orders_[names_[send->attach]] = *order;
        ++orders_given_;
      }
      if (const auto* ask = std::get_if<AskRestart>(&effect)) asked_.push_back(ask->incident.what);
      if (const auto* reply = std::get_if<Reply>(&effect)) reply_ = reply->outcome;
    }
  }
  void Observe(const Event& event, std::vector<Effect> effects = {}) {
    Take(supervisor_->Observe(event, effects, Now()));
  }
  void Apply(const RunEvent& event) { Take(supervisor_->Apply(event, Now())); }

  void Attach(const std::string& node) {
    NodeAttached event;
    event.attach = ++attaches_;
    names_[event.attach] = node;
    event.node = node;
    event.agent_start = 1;
    event.worker_address = "10.0.0." + node.substr(1);
    event.workers = workers_[node];
    attach_of_[node] = event.attach;
    Observe(event);
  }
  void Report(const std::string& node) {
    NodeReported event;
    event.node = node;
    event.agent_start = 1;
    event.workers = workers_[node];
    Observe(event);
  }
  /// The node's workers are what it was told.
  void Obey(const std::string& node) {
    const WorkersOrder& order = orders_[node];
    workers_[node].clear();
    for (uint32_t i = 0; i < order.ranks; ++i) {
      workers_[node].push_back({order.job, order.run_id, Rank{order.first_rank.value + i},
                                WorkerPhase::kRunning, 100 + i, 0, 0, 0});
    }
    Report(node);
  }
  void ObeyAll() {
    for (const auto& [node, order] : std::map(orders_)) {
      if (gone_.count(node) == 0) Obey(node);
    }
  }
  void EndWorker(const std::string& node, int exit_code, int signal, int64_t ago_ms = 0) {
    WorkerState& worker = workers_[node].front();
    worker.phase = WorkerPhase::kEnded;
    worker.exit_code = exit_code;
    worker.signal = signal;
    worker.ended_ago_ms = ago_ms;
    worker.last_lines = "last words of " + node;
    Report(node);
  }
  void LoseStream(const std::string& node) { Observe(NodeDetached{node, attach_of_[node]}); }
  /// Its lease ends, its stream does not.
  void Silence(const std::string& node) {
    gone_.insert(node);
    Observe(Tick{}, {NodeGone{node, "no word", /*silent=*/true}});
  }
  void Lose(const std::string& node) {
    gone_.insert(node);
    Observe(Tick{}, {NodeGone{node, "its stream ended"}});
  }
  /// The ranks joined, and committed a first version.
  void Progress(Incarnation incarnation, uint64_t step) {
    LineageRecord lineage;
    lineage.job = "gpt";
    lineage.incarnation = incarnation;
    lineage.run_id = runs_["gpt"].run_id();
    lineage.world = 4;
    Observe(Tick{}, {PutLineage{lineage, LineageChange::kOpened}});
    lineage.decision = Decision::kVersion;
    lineage.restored = {Incarnation{incarnation.value - 1}, Step{step - 1}};
    Observe(Tick{}, {PutLineage{lineage, LineageChange::kDecided}});
    VersionRecord version;
    version.job = "gpt";
    version.version = {incarnation, Step{step}};
    version.world = 4;
    Observe(Tick{}, {PutVersion{version, TierBit(Tier::kMemory)}});
  }
  void FailGpu(const std::string& node, uint32_t xid, uint64_t number = 1) {
    GpuFailed event;
    event.node = node;
    event.agent_start = 1;
    event.number = number;
    event.device = 3;
    event.xid = xid;
    Apply(event);
  }
  /// The newest that something is done about.
  const IncidentRecord& Newest() const { return incidents_.rbegin()->second; }
  void Start(uint32_t nodes = 4, uint32_t spares = 0) {
    RunWanted wanted;
    wanted.request = 7;
    wanted.spec.job = "gpt";
    wanted.spec.command = {"train"};
    wanted.spec.directory = "/";
    wanted.spec.nodes = nodes;
    wanted.spec.spares = spares;
    Apply(wanted);
  }
  /// Four nodes run a job of four ranks.
  void StartAndRun() {
    for (const char* node : {"n0", "n1", "n2", "n3"}) Attach(node);
    Start();
    ObeyAll();
    Progress(Incarnation{2}, 10);
    ASSERT_EQ(Phase(), RunPhase::kRunning);
  }
  RunPhase Phase() { return runs_["gpt"].phase; }

  static SupervisorOptions Hasty() {
    SupervisorOptions options;
    options.replace_after = milliseconds(1500);
    return options;
  }
  SupervisorOptions options_ = Hasty();
  Clock::TimePoint now_{std::chrono::hours(1)};
  int64_t wall_ = 1'000'000'000'000;
  std::unique_ptr<Supervisor> supervisor_;
  std::map<std::string, RunRecord> runs_;
  std::map<uint64_t, IncidentRecord> incidents_;
  std::map<std::string, QuarantineRecord> quarantine_;
  std::map<std::string, SuspectRecord> suspects_;
  std::map<std::string, WorkersOrder> orders_;
  int orders_given_ = 0;
  std::vector<std::string> asked_;
  Status reply_;
  AttachId attaches_ = 0;
  std::map<AttachId, std::string> names_;
  std::map<std::string, AttachId> attach_of_;
  std::map<std::string, std::vector<WorkerState>> workers_;
  std::set<std::string> gone_;
};

/// A report may name ranks that the node has no place for: of another world, of another node.
TEST_F(SupervisorTest, WorkersWithoutAPlaceOnTheirNodeDoNotCount) {
  StartAndRun();
  const std::string run_id = runs_["gpt"].run_id();
  const auto tell = [&](const std::string& node, uint32_t rank, int exit_code) {
    workers_[node].push_back({"gpt", run_id, Rank{rank}, WorkerPhase::kEnded, 7, exit_code, 0, 0});
    Report(node);
  };
  tell("n0", 900'000, 1);  // beyond the world
  tell("n1", 4, 1);
  tell("n1", 3, 1);  // n3's
  Pass(milliseconds(500));
  EXPECT_EQ(Phase(), RunPhase::kRunning);
  EXPECT_TRUE(incidents_.empty());
  // Nor does the run end because strangers ended well.
  for (const uint32_t rank : {5U, 6U, 7U, 8U}) tell("n2", rank, 0);
  Pass(milliseconds(500));
  EXPECT_EQ(Phase(), RunPhase::kRunning);
}

/// A rank that is named twice is one rank.
TEST_F(SupervisorTest, ARankCountsOnceForTheStart) {
  for (const char* node : {"n0", "n1", "n2", "n3"}) Attach(node);
  Start();
  for (const char* node : {"n0", "n1", "n2"}) Obey(node);
  workers_["n0"].push_back(workers_["n0"].front());
  Report("n0");
  EXPECT_EQ(Phase(), RunPhase::kStarting);
}

TEST_F(SupervisorTest, EachNodeIsToldItsRanks) {
  for (const char* node : {"n2", "n0", "n1"}) Attach(node);
  RunWanted wanted;
  wanted.spec.job = "gpt";
  wanted.spec.command = {"train"};
  wanted.spec.nodes = 2;
  wanted.spec.ranks_per_node = 8;
  Apply(wanted);
  ASSERT_EQ(orders_.size(), 2U);
  const WorkersOrder& order = orders_["n1"];
  EXPECT_EQ(order.run_id, "run-1.1");
  EXPECT_EQ(order.first_rank, Rank{8});
  EXPECT_EQ(order.ranks, 8U);
  EXPECT_EQ(order.world, 16U);
  EXPECT_EQ(order.node_rank, 1U);
  EXPECT_EQ(order.master_address, "10.0.0.0");
  EXPECT_EQ(order.master_port, orders_["n0"].master_port);
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
  EXPECT_THAT(incident.evidence[0], HasSubstr("last words of n1"));
  EXPECT_THAT(incident.evidence[1], HasSubstr("rank 3"));
  EXPECT_EQ(runs_["gpt"].run_id(), "run-1.2");
  EXPECT_EQ(orders_["n1"].run_id, "run-1.2");
  EXPECT_EQ(orders_["n1"].first_rank, Rank{1});
  EXPECT_EQ(orders_["n1"].restarts, 1U);
}

TEST_F(SupervisorTest, AnIncidentIsClosedByTheFirstCommitAndSaysHowLongAllTook) {
  StartAndRun();
  EndWorker("n1", 0, SIGKILL, 20);
  Pass(milliseconds(200));
  Pass(milliseconds(100));
  EXPECT_EQ(incidents_[1].state, IncidentState::kOpen);
  EXPECT_LT(incidents_[1].stop_ms, 0);
  ObeyAll();
  EXPECT_GE(incidents_[1].stop_ms, 300);
  Pass(milliseconds(100));
  NodeReported sealed;
  sealed.node = "n0";
  sealed.agent_start = 1;
  sealed.workers = workers_["n0"];
  sealed.holdings = {{"gpt", {Incarnation{2}, Step{13}}, Rank{0}, 4}};
  Observe(sealed);
  Progress(Incarnation{3}, 12);
  const IncidentRecord& incident = incidents_[1];
  EXPECT_EQ(incident.state, IncidentState::kRecovered);
  EXPECT_EQ(incident.restored, (VersionId{Incarnation{2}, Step{11}}));
  EXPECT_EQ(incident.lost_steps, 2);
  EXPECT_GE(incident.detect_ms, 20);
  EXPECT_GE(incident.restore_ms, incident.stop_ms);
  EXPECT_GE(incident.first_step_ms, incident.restore_ms);
}

TEST_F(SupervisorTest, AnAgentThatComesBackInTimeCostsNothing) {
  StartAndRun();
  LoseStream("n2");
  Lose("n2");
  Pass(milliseconds(1000));
  EXPECT_TRUE(incidents_.empty());
  gone_.clear();
  Attach("n2");
  Pass(milliseconds(5000));
  EXPECT_TRUE(incidents_.empty());
  EXPECT_EQ(Phase(), RunPhase::kRunning);
  EXPECT_EQ(orders_["n2"].run_id, "run-1.1") << "told again, to be sure";
}

TEST_F(SupervisorTest, ANodeThatFallsSilentIsReplacedSoLongAfterItsLastWord) {
  StartAndRun();
  Attach("n9");
  // Its connection does not end: the lease of one second has to.
  Pass(milliseconds(1000));
  Lose("n2");
  Pass(milliseconds(490));
  EXPECT_TRUE(incidents_.empty());
  Pass(milliseconds(20));
  ASSERT_EQ(incidents_.size(), 1U);
  EXPECT_EQ(incidents_[1].kind, "node lost");
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n1", "n9", "n3"));
}

/// A stopped agent or a frozen machine looks like this; it may go on where it was.
TEST_F(SupervisorTest, ANodeThatIsSilentWithoutHavingLeftIsWaitedForLonger) {
  StartAndRun();
  Attach("n9");
  Pass(milliseconds(1000));
  Silence("n2");
  Pass(milliseconds(6000));
  EXPECT_TRUE(incidents_.empty());
  gone_.clear();
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

TEST_F(SupervisorTest, NodesThatGoTogetherAreWaitedForLonger) {
  StartAndRun();
  Lose("n1");
  Lose("n2");
  Pass(milliseconds(6000));
  EXPECT_TRUE(incidents_.empty());
  gone_.clear();
  Attach("n1");
  Attach("n2");
  Pass(milliseconds(500));
  EXPECT_TRUE(incidents_.empty());
  // A launch that is broken anyway waits for nobody.
  Lose("n1");
  Lose("n2");
  EndWorker("n0", 1, 0);
  Pass(milliseconds(200));
  ASSERT_EQ(incidents_.size(), 1U);
  EXPECT_EQ(incidents_[1].kind, "node lost");
}

TEST_F(SupervisorTest, NobodyIsBlamedForALeaseAfterTheCoordinatorStoodStill) {
  StartAndRun();
  Attach("n9");
  Lose("n2");
  now_ += milliseconds(5000);
  Observe(Tick{.resumed = true});
  EXPECT_TRUE(incidents_.empty());
  Report("n0");  // every event looks for what is overdue
  Pass(milliseconds(2900));
  EXPECT_TRUE(incidents_.empty());
  Pass(milliseconds(200));
  ASSERT_EQ(incidents_.size(), 1U);
  EXPECT_EQ(incidents_[1].kind, "node lost");
}

TEST_F(SupervisorTest, HoldingsOfJobsThatNeverStartedAreNotRemembered) {
  StartAndRun();
  NodeReported event;
  event.node = "n0";
  event.agent_start = 1;
  event.workers = workers_["n0"];
  event.holdings = {{"gpt", {Incarnation{1}, Step{999}}, Rank{0}, 4},
                    {"gpt", {Incarnation{77}, Step{1}}, Rank{0}, 4},
                    {"stranger", {Incarnation{1}, Step{1}}, Rank{0}, 4}};
  Observe(event);
  Progress(Incarnation{3}, 12);  // decides for 2-11
  EndWorker("n1", 0, SIGKILL);
  Pass(milliseconds(200));
  Progress(Incarnation{4}, 13);
  EXPECT_GE(incidents_[1].lost_steps, 0);
  EXPECT_LT(incidents_[1].lost_steps, 3) << "what was never sealed was not lost";
}

TEST_F(SupervisorTest, AnAgentIsWaitedForWhileTheOthersStillSealVersions) {
  StartAndRun();
  uint64_t step = 100;
  const auto seal = [&] {
    NodeReported event;
    event.node = "n0";
    event.agent_start = 1;
    event.workers = workers_["n0"];
    event.holdings.push_back({"gpt", {Incarnation{1}, Step{++step}}, Rank{0}, 4, Tier::kMemory});
    Observe(event);
  };
  LoseStream("n2");
  Lose("n2");
  for (int i = 0; i < 10; ++i) {
    seal();
    Pass(milliseconds(1000));
  }
  EXPECT_TRUE(incidents_.empty()) << "rank 2 has part in every step";
  gone_.clear();
  Attach("n2");
  LoseStream("n2");
  Lose("n2");
  seal();
  Pass(milliseconds(1400));
  EXPECT_TRUE(incidents_.empty());
  Pass(milliseconds(200));
  ASSERT_EQ(incidents_.size(), 1U) << "nothing moves any more";
  EXPECT_EQ(incidents_[1].kind, "node lost");
}

TEST_F(SupervisorTest, ANodeIsNotWaitedForForEverWhateverTheOthersSeal) {
  StartAndRun();
  Lose("n2");
  uint64_t step = 100;
  while (incidents_.empty() && step < 200) {
    NodeReported event;
    event.node = "n0";
    event.agent_start = 1;
    event.workers = workers_["n0"];
    event.holdings.push_back({"gpt", {Incarnation{1}, Step{++step}}, Rank{0}, 4, Tier::kMemory});
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
  EXPECT_EQ(orders_["n9"].first_rank, Rank{2});
  EXPECT_THAT(incidents_[1].plan, HasSubstr("n9 for n2"));
}

TEST_F(SupervisorTest, WithoutASpareTheJobWaitsAndTheOthersStop) {
  StartAndRun();
  Lose("n2");
  Pass(milliseconds(2000));
  EXPECT_EQ(Phase(), RunPhase::kWaiting);
  EXPECT_EQ(orders_["n0"].ranks, 0U);
  ObeyAll();
  workers_["n2"].clear();
  gone_.clear();
  Attach("n2");
  EXPECT_EQ(Phase(), RunPhase::kStarting);
  EXPECT_EQ(orders_["n0"].run_id, "run-1.2");
  EXPECT_EQ(orders_["n2"].first_rank, Rank{2});
}

TEST_F(SupervisorTest, WhatIsLeftOfAnOldLaunchIsStoppedWhenItsNodeComesBack) {
  StartAndRun();
  Attach("n9");
  Lose("n2");
  Pass(milliseconds(2000));
  ASSERT_EQ(runs_["gpt"].nodes[2], "n9");
  gone_.clear();
  orders_.erase("n2");
  Attach("n2");  // with its worker of the first launch
  ASSERT_EQ(orders_.count("n2"), 1U);
  EXPECT_EQ(orders_["n2"].ranks, 0U);
}

TEST_F(SupervisorTest, ABudgetOfRestartsEnds) {
  for (const char* node : {"n0", "n1"}) Attach(node);
  RunWanted wanted;
  wanted.spec.job = "gpt";
  wanted.spec.command = {"false"};
  wanted.spec.nodes = 2;
  wanted.spec.restarts_max = 2;
  Apply(wanted);
  std::vector<int64_t> waits;
  for (int launch = 1; launch <= 3; ++launch) {
    ObeyAll();
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
  EXPECT_EQ(orders_["n1"].ranks, 0U);
}

TEST_F(SupervisorTest, ANodeThatBreaksLaunchAfterLaunchIsQuarantinedAndStaysThere) {
  for (const char* node : {"n0", "n1", "n9"}) Attach(node);
  Start(2);
  ObeyAll();
  Progress(Incarnation{2}, 10);
  for (int i = 0; i < 3; ++i) {
    ObeyAll();
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
  Apply(QuarantineWanted{1, "n1", false, ""});
  EXPECT_TRUE(quarantine_.empty());
}

TEST_F(SupervisorTest, AJobThatFailsBeforeItsFirstSaveStopsWithItsLastLinesAndBlamesNoNode) {
  for (const char* node : {"n0", "n1", "n2", "n3"}) Attach(node);
  Start(3);
  std::set<std::string> blamed;
  for (int i = 0; i < 3; ++i) {
    ObeyAll();
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
  EXPECT_THAT(runs_["gpt"].why, HasSubstr("last words of"));
  EXPECT_EQ(Newest().state, IncidentState::kGivenUp);
}

TEST_F(SupervisorTest, WhetherItIsTheNodeOrTheJobIsTriedOnAnotherNode) {
  for (const char* node : {"n0", "n1", "n2"}) Attach(node);
  Start(2);
  ObeyAll();
  EndWorker("n1", 1, 0);
  Pass(milliseconds(200));
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n2"));
  ObeyAll();
  Progress(Incarnation{3}, 10);
  EXPECT_EQ(Phase(), RunPhase::kRunning);
  EXPECT_TRUE(quarantine_.empty());
}

TEST_F(SupervisorTest, ANodeThatKillsWorkersIsToBlameAlsoBeforeTheFirstSave) {
  for (const char* node : {"n0", "n1", "n2"}) Attach(node);
  Start(2);
  for (int i = 0; i < 3; ++i) {
    ObeyAll();
    EndWorker("n1", 0, SIGKILL);
    for (int k = 0; k < 100; ++k) Pass(milliseconds(100));
  }
  EXPECT_EQ(quarantine_.count("n1"), 1U);
  EXPECT_FALSE(HasEnded(Phase()));
}

TEST_F(SupervisorTest, TheSameEndOnSeveralNodesQuarantinesNobody) {
  StartAndRun();
  const char* nodes[] = {"n1", "n2", "n1", "n1"};
  for (const char* node : nodes) {
    ObeyAll();
    EndWorker(node, 1, 0);
    for (int k = 0; k < 100; ++k) Pass(milliseconds(100));
  }
  EXPECT_TRUE(quarantine_.empty());
  EXPECT_EQ(Phase(), RunPhase::kFailed) << "no rank joined, whichever node it was";
  EXPECT_THAT(runs_["gpt"].why, HasSubstr("before a rank joined"));
}

TEST_F(SupervisorTest, NewVersionsMakeTheBudgetOfRestartsFullAgain) {
  RunWanted wanted;
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
    ObeyAll();
    Progress(Incarnation{++incarnation}, ++step);
  };
  ObeyAll();
  Progress(Incarnation{incarnation}, ++step);
  for (int i = 0; i < 20; ++i) {
    fail();
    for (int k = 0; k < 2; ++k) commit(++step);
    ASSERT_EQ(Phase(), RunPhase::kRunning) << "after restart " << i;
  }
  EXPECT_EQ(runs_["gpt"].restarts(), 20U);
  // A coordinator that starts again knows how far the budget is used.
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
    ObeyAll();
  }
  EXPECT_EQ(Phase(), RunPhase::kFailed);
  EXPECT_THAT(runs_["gpt"].why, HasSubstr("all 2 restarts are used up"));
}

FaultFound HangOf(int64_t lasting_ms, bool stuck) {
  FaultFound fault;
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

TEST_F(SupervisorTest, APauseOfARankIsNotedAtOnceAndRestartedWhenItLasts) {
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

TEST_F(SupervisorTest, WhereNothingCanMoveARestartComesSooner) {
  StartAndRun();
  Apply(HangOf(59'000, true));
  EXPECT_EQ(runs_["gpt"].restarts(), 0U);
  Apply(HangOf(60'000, true));
  EXPECT_EQ(runs_["gpt"].restarts(), 1U);
}

TEST_F(SupervisorTest, AHangMustLastLongerThanTheLongestPauseSoFar) {
  StartAndRun();
  FaultFound fault = HangOf(800'000, false);
  fault.longest_pause_ms = 900'000;
  Apply(fault);
  EXPECT_EQ(runs_["gpt"].restarts(), 0U);
  fault.lasting_ms = 900'001;
  Apply(fault);
  EXPECT_EQ(runs_["gpt"].restarts(), 1U);
}

TEST_F(SupervisorTest, TheSamePlaceASecondTimeIsGivenTwiceTheTime) {
  StartAndRun();
  Apply(HangOf(600'000, false));
  ASSERT_EQ(runs_["gpt"].restarts(), 1U);
  ObeyAll();
  Progress(Incarnation{3}, 20);
  FaultFound again = HangOf(900'000, false);
  again.incarnation = Incarnation{3};
  Apply(again);
  EXPECT_EQ(runs_["gpt"].restarts(), 1U) << "an evaluation of 15 minutes would end the job";
  again.step = 41;
  Apply(again);
  EXPECT_EQ(runs_["gpt"].restarts(), 2U) << "elsewhere it is another hang";
}

TEST_F(SupervisorTest, ARunHasItsOwnPatienceAndAction) {
  for (const char* node : {"n0", "n1", "n2", "n3"}) Attach(node);
  RunWanted wanted;
  wanted.spec.job = "gpt";
  wanted.spec.command = {"train"};
  wanted.spec.nodes = 4;
  wanted.spec.hang_after_ms = 5000;
  Apply(wanted);
  ObeyAll();
  Progress(Incarnation{2}, 10);
  Apply(HangOf(5000, false));
  EXPECT_EQ(runs_["gpt"].restarts(), 1U);
  EXPECT_EQ(incidents_.size(), 1U);

  for (const auto action : {DetectAction::kAlert, DetectAction::kOff}) {
    Apply(StopWanted{1, "gpt", 0});
    Pass(milliseconds(100));
    ASSERT_TRUE(HasEnded(Phase()));
    incidents_.clear();
    wanted.spec.detect_action = action;
    Apply(wanted);
    ObeyAll();
    Progress(Incarnation{action == DetectAction::kAlert ? 7U : 8U}, 10);
    FaultFound fault = HangOf(5'000'000, true);
    fault.incarnation = Incarnation{action == DetectAction::kAlert ? 7U : 8U};
    Apply(fault);
    EXPECT_EQ(runs_["gpt"].restarts(), 0U);
    EXPECT_EQ(incidents_.size(), action == DetectAction::kAlert ? 1U : 0U);
    EndWorker("n1", 0, SIGKILL);
    Pass(milliseconds(200));
    EXPECT_EQ(runs_["gpt"].restarts(), 1U) << "a worker that ends is dealt with all the same";
    ObeyAll();
  }
}

FaultFound DeadRank(uint64_t incarnation) {
  FaultFound fault;
  fault.job = "slurm";
  fault.incarnation = Incarnation{incarnation};
  fault.kind = "dead";
  fault.what = "rank 5 is dead";
  fault.action = FaultAction::kRestartElsewhere;
  fault.dead = true;
  return fault;
}

TEST_F(SupervisorTest, ARestartCommandThatFailsIsRunAgainUntilItIsGivenUp) {
  options_.can_ask = true;
  options_.command_attempts = 3;
  supervisor_ = std::make_unique<Supervisor>(options_, Records(), Now());
  Apply(DeadRank(4));
  EXPECT_EQ(asked_.size(), 1U);
  for (int i = 0; i < 100; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(asked_.size(), 1U) << "it still runs";
  Apply(RestartCommandEnded{1, false, "ended with exit code 7"});
  EXPECT_THAT(incidents_[1].plan, HasSubstr("exit code 7"));
  EXPECT_THAT(incidents_[1].plan, HasSubstr("10 s"));
  for (int i = 0; i < 9; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(asked_.size(), 1U);
  Pass(milliseconds(1000));
  EXPECT_EQ(asked_.size(), 2U);
  Apply(RestartCommandEnded{1, false, "did not end within 60000 ms and was killed"});
  for (int i = 0; i < 20; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(asked_.size(), 3U);
  Apply(RestartCommandEnded{1, false, "ended with exit code 7"});
  EXPECT_EQ(incidents_[1].state, IncidentState::kGivenUp);
  EXPECT_THAT(incidents_[1].plan, HasSubstr("by hand"));
  EXPECT_EQ(incidents_[1].evidence.size(), 3U);
  for (int i = 0; i < 1000; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(asked_.size(), 3U);
}

TEST_F(SupervisorTest, ARestartCommandThatSucceedsOrIsNotNeededIsNotRunAgain) {
  options_.can_ask = true;
  supervisor_ = std::make_unique<Supervisor>(options_, Records(), Now());
  Apply(DeadRank(4));
  Apply(RestartCommandEnded{1, true, "ended with exit code 0"});
  EXPECT_THAT(incidents_[1].plan, HasSubstr("exit code 0"));
  for (int i = 0; i < 1000; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(asked_.size(), 1U) << "a queue may take its time";

  // Somebody else starts the job before the next attempt.
  Apply(DeadRank(6));
  ASSERT_EQ(asked_.size(), 2U);
  Apply(RestartCommandEnded{2, false, "ended with exit code 1"});
  LineageRecord lineage;
  lineage.job = "slurm";
  lineage.incarnation = Incarnation{7};
  lineage.run_id = "by-hand";
  Observe(Tick{}, {PutLineage{lineage, LineageChange::kOpened}});
  for (int i = 0; i < 1000; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(asked_.size(), 2U);

  // A person ended it on purpose.
  Apply(DeadRank(8));
  ASSERT_EQ(asked_.size(), 3U);
  Apply(RestartCommandEnded{3, false, "ended with exit code 1"});
  Apply(AcknowledgeWanted{9, 3, "the job was cancelled"});
  EXPECT_TRUE(reply_.ok());
  EXPECT_EQ(incidents_[3].state, IncidentState::kAcknowledged);
  for (int i = 0; i < 1000; ++i) Pass(milliseconds(1000));
  Apply(DeadRank(8));
  EXPECT_EQ(asked_.size(), 3U);
  Apply(AcknowledgeWanted{9, 77, ""});
  EXPECT_EQ(reply_.code(), ErrorCode::kNotFound);
}

TEST_F(SupervisorTest, ARestartCommandHasACoolDown) {
  options_.can_ask = true;
  supervisor_ = std::make_unique<Supervisor>(options_, Records(), Now());
  Apply(DeadRank(4));
  Apply(RestartCommandEnded{1, true, "ended with exit code 0"});
  Pass(milliseconds(1000));
  Apply(DeadRank(5));
  EXPECT_EQ(asked_.size(), 1U);
  EXPECT_THAT(incidents_[2].plan, HasSubstr("29 s"));
  for (int i = 0; i < 29; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(asked_.size(), 2U);
}

TEST_F(SupervisorTest, ARestartCommandWhoseEndWasNotSeenIsRunAgainByTheNextCoordinator) {
  options_.can_ask = true;
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
  EXPECT_EQ(asked_.size(), 1U) << "the watcher finds it anew, that is no second fault";
  for (int i = 0; i < 40; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(asked_.size(), 2U);
  Apply(RestartCommandEnded{1, true, "ended with exit code 0"});
  records.incidents[0] = incidents_[1];
  supervisor_ = std::make_unique<Supervisor>(options_, records, Now());
  for (int i = 0; i < 40; ++i) Pass(milliseconds(1000));
  EXPECT_EQ(asked_.size(), 2U);
}

TEST_F(SupervisorTest, AHangIsRestartedWithoutItsNodeWhenThereIsAnother) {
  StartAndRun();
  Attach("n9");
  FaultFound fault;
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
  EXPECT_EQ(orders_["n1"].ranks, 0U);
  EXPECT_TRUE(quarantine_.empty());
  // The same, said of the launch before, is no news.
  Apply(fault);
  EXPECT_EQ(incidents_.size(), 1U);
}

TEST_F(SupervisorTest, WhatIsOnlyWorthANoteChangesNothing) {
  StartAndRun();
  const int orders = orders_given_;
  FaultFound fault;
  fault.job = "gpt";
  fault.incarnation = Incarnation{2};
  fault.kind = "communication slow";
  Apply(fault);
  EXPECT_EQ(incidents_[1].state, IncidentState::kNoted);
  EXPECT_EQ(Phase(), RunPhase::kRunning);
  EXPECT_EQ(orders_given_, orders);
}

TEST_F(SupervisorTest, WhoLaunchedAJobIsAskedOnceToStartItAgain) {
  options_.can_ask = true;
  supervisor_ = std::make_unique<Supervisor>(options_, Records(), Now());
  FaultFound fault;
  fault.job = "slurm";
  fault.incarnation = Incarnation{4};
  fault.kind = "dead";
  fault.what = "rank 5 is dead";
  fault.action = FaultAction::kRestartElsewhere;
  fault.dead = true;
  Apply(fault);
  Apply(fault);
  EXPECT_THAT(asked_, ElementsAre("rank 5 is dead"));
  EXPECT_EQ(incidents_[1].state, IncidentState::kOpen);
  VersionRecord version;
  version.job = "slurm";
  version.version = {Incarnation{5}, Step{9}};
  Observe(Tick{}, {PutVersion{version, TierBit(Tier::kMemory)}});
  EXPECT_EQ(incidents_[1].state, IncidentState::kRecovered);
}

TEST_F(SupervisorTest, ABrokenGpuIsNamedWhenARankDiesAndItsNodeIsLeftOut) {
  Attach("n4");
  StartAndRun();
  FailGpu("n2", 79);
  EXPECT_EQ(Phase(), RunPhase::kRunning) << "nobody is stopped for it";
  ASSERT_EQ(incidents_.size(), 1U);
  EXPECT_EQ(Newest().state, IncidentState::kNoted);
  EXPECT_EQ(Newest().what, "Xid 79 on GPU 3 of node n2: GPU has fallen off the bus");
  EXPECT_THAT(supervisor_->Suspects(), ElementsAre("n2"));
  Pass(milliseconds(2500));
  // Another was killed for want of it, and its own rank ended of itself, later.
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
  FaultFound hang;
  hang.job = "gpt";
  hang.incarnation = Incarnation{2};
  hang.kind = "communication hang";
  hang.action = FaultAction::kRestart;  // nobody is blamed
  Apply(hang);
  EXPECT_THAT(Newest().evidence.front(), HasSubstr("Xid 48 on GPU 3 of node n1"));
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n4", "n2", "n3"));
}

TEST_F(SupervisorTest, WhatTheProgramDidToAGpuIsOnlyTold) {
  Attach("n4");
  StartAndRun();
  FailGpu("n2", 31, 1);
  FailGpu("n2", 31, 2);
  FailGpu("n2", 31, 2);
  EXPECT_EQ(incidents_.size(), 1U) << "the same again is no news";
  EXPECT_TRUE(supervisor_->Suspects().empty());
  EndWorker("n1", 0, SIGSEGV);
  EXPECT_THAT(Newest().nodes, ElementsAre("n1")) << "it is no reason";
  EXPECT_EQ(std::count_if(Newest().evidence.begin(), Newest().evidence.end(),
                          [](const auto& one) { return one.find("Xid 31") != one.npos; }),
            2);
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n1", "n2", "n3"));
}

TEST_F(SupervisorTest, ASuspectNodeIsUsedWhereThereIsNoOtherAndUntilItIsReleased) {
  StartAndRun();
  FailGpu("n2", 95);
  EndWorker("n2", 1, 0);
  Pass(milliseconds(200));
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n1", "n2", "n3")) << "there is no other";
  Attach("n4");
  QuarantineWanted release;
  release.node = "n2";
  release.set = false;
  Apply(release);
  EXPECT_TRUE(supervisor_->Suspects().empty());
  FailGpu("n0", 79, 1);
  Pass(std::chrono::hours(25));
  EXPECT_TRUE(supervisor_->Suspects().empty()) << "somebody has seen to it by now";
  FailGpu("n7", 79);  // nobody knows it
  EXPECT_TRUE(supervisor_->Suspects().empty());
}

TEST_F(SupervisorTest, ASuspectNodeStaysOneForANewCoordinator) {
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
  Apply(QuarantineWanted{1, "n3", false, ""});
  EXPECT_TRUE(reply_.ok()) << reply_.ToString();
  start_again();
  EXPECT_THAT(supervisor_->Suspects(), ElementsAre("n2"));
  for (const char* node : {"n0", "n1", "n2", "n3", "n4"}) Attach(node);
  EndWorker("n2", 1, 0);
  Pass(milliseconds(200));
  EXPECT_THAT(Newest().evidence.front(), HasSubstr("Xid 79 on GPU 3 of node n2"));
  EXPECT_THAT(runs_["gpt"].nodes, ElementsAre("n0", "n1", "n4", "n3"));
  // The day does not begin again with each coordinator.
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

TEST_F(SupervisorTest, StopsOnceTheDiskHasWhatMemoryHad) {
  StartAndRun();
  Apply(StopWanted{1, "gpt", 10'000});
  EXPECT_EQ(Phase(), RunPhase::kStopping);
  EXPECT_EQ(orders_["n0"].ranks, 1U) << "it trains on";
  VersionRecord version;
  version.job = "gpt";
  version.version = {Incarnation{2}, Step{9}};
  Observe(Tick{}, {PutVersion{version, TierBit(Tier::kDisk)}});
  EXPECT_EQ(Phase(), RunPhase::kStopping);
  version.version = {Incarnation{2}, Step{10}};
  Observe(Tick{}, {PutVersion{version, TierBit(Tier::kDisk)}});
  EXPECT_EQ(Phase(), RunPhase::kStopped);
  EXPECT_EQ(orders_["n0"].ranks, 0U);
}

TEST_F(SupervisorTest, StopsAtItsDeadlineWhateverTheDiskHas) {
  StartAndRun();
  Apply(StopWanted{1, "gpt", 1000});
  Pass(milliseconds(900));
  EXPECT_EQ(Phase(), RunPhase::kStopping);
  Pass(milliseconds(200));
  EXPECT_EQ(Phase(), RunPhase::kStopped);
}

TEST_F(SupervisorTest, FinishesWhenEveryWorkerEndedWell) {
  StartAndRun();
  for (const char* node : {"n0", "n1", "n2"}) EndWorker(node, 0, 0);
  Pass(milliseconds(5000));
  EXPECT_EQ(Phase(), RunPhase::kRunning);
  EndWorker("n3", 0, 0);
  EXPECT_EQ(Phase(), RunPhase::kFinished);
  EXPECT_TRUE(incidents_.empty());
}

TEST_F(SupervisorTest, ARestartedCoordinatorGoesOnWhereItWas) {
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
  Obey("n0");
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
