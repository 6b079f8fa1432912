#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/restart/supervisor.h"

namespace holdfast::coord {
using std::chrono::milliseconds;

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
  void Progress(Incarnation incarnation, uint64_t step, const std::string& behind = "") {
    LineageRecord lineage;
    lineage.job = "gpt";
    lineage.incarnation = incarnation;
    lineage.run_id = runs_["gpt"].run_id() + behind;
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

}  // namespace holdfast::coord
