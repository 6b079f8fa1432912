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

/// A supervisor with nodes that follow its directives. The test plays the role of State.
class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() : supervisor_(std::make_unique<Supervisor>(options_, Records(), Now())) {}

  Instant Now() const { return {now_, wall_}; }
  void Pass(milliseconds time) {
    now_ += time;
    wall_ += time.count() * 1'000'000;
    Observe(Tick{});
  }

  /// Keeps the stored records, and the directives by node.
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
        const auto* directive = std::get_if<SetWorkers>(&send->directive);
        ASSERT_NE(directive, nullptr);
        directives_[node_of_attach_[send->attach]] = *directive;
        ++directives_sent_;
      }
      if (const auto* command = std::get_if<RunRestartCommand>(&effect)) {
        restart_commands_.push_back(command->incident.what);
      }
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
    node_of_attach_[event.attach] = node;
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
  /// Makes the node run the workers of its directive.
  void ApplyDirective(const std::string& node) {
    const SetWorkers& directive = directives_[node];
    workers_[node].clear();
    for (uint32_t i = 0; i < directive.ranks; ++i) {
      workers_[node].push_back({directive.job, directive.run_id,
                                Rank{directive.first_rank.value + i}, WorkerPhase::kRunning,
                                100 + i, 0, 0, 0});
    }
    Report(node);
  }
  void ApplyDirectives() {
    for (const auto& [node, directive] : std::map(directives_)) {
      if (lost_.count(node) == 0) ApplyDirective(node);
    }
  }
  void EndWorker(const std::string& node, int exit_code, int signal, int64_t ago_ms = 0) {
    WorkerState& worker = workers_[node].front();
    worker.phase = WorkerPhase::kEnded;
    worker.exit_code = exit_code;
    worker.signal = signal;
    worker.ended_ago_ms = ago_ms;
    worker.last_lines = "last lines of " + node;
    Report(node);
  }
  void LoseStream(const std::string& node) { Observe(NodeDetached{node, attach_of_[node]}); }
  /// Ends the node's lease while its stream stays open.
  void Silence(const std::string& node) {
    lost_.insert(node);
    Observe(Tick{}, {NodeDeclaredLost{node, "no message", /*silent=*/true}});
  }
  void Lose(const std::string& node) {
    lost_.insert(node);
    Observe(Tick{}, {NodeDeclaredLost{node, "its stream ended"}});
  }
  /// Makes the ranks join and commit a first version.
  void Progress(Incarnation incarnation, uint64_t step, const std::string& run_id_suffix = "") {
    LineageRecord lineage;
    lineage.job = "gpt";
    lineage.incarnation = incarnation;
    lineage.run_id = runs_["gpt"].run_id() + run_id_suffix;
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
  /// Returns the newest incident.
  const IncidentRecord& Newest() const { return incidents_.rbegin()->second; }
  void Start(uint32_t nodes = 4, uint32_t spares = 0) {
    RunRequested wanted;
    wanted.request = 7;
    wanted.spec.job = "gpt";
    wanted.spec.command = {"train"};
    wanted.spec.directory = "/";
    wanted.spec.nodes = nodes;
    wanted.spec.spares = spares;
    Apply(wanted);
  }
  /// Starts a job of four ranks on four nodes.
  void StartAndRun() {
    for (const char* node : {"n0", "n1", "n2", "n3"}) Attach(node);
    Start();
    ApplyDirectives();
    Progress(Incarnation{2}, 10);
    ASSERT_EQ(Phase(), RunPhase::kRunning);
  }
  RunPhase Phase() { return runs_["gpt"].phase; }

  static SupervisorOptions FastOptions() {
    SupervisorOptions options;
    options.replace_after = milliseconds(1500);
    return options;
  }
  SupervisorOptions options_ = FastOptions();
  Clock::TimePoint now_{std::chrono::hours(1)};
  int64_t wall_ = 1'000'000'000'000;
  std::unique_ptr<Supervisor> supervisor_;
  std::map<std::string, RunRecord> runs_;
  std::map<uint64_t, IncidentRecord> incidents_;
  std::map<std::string, QuarantineRecord> quarantine_;
  std::map<std::string, SuspectRecord> suspects_;
  std::map<std::string, SetWorkers> directives_;
  int directives_sent_ = 0;
  std::vector<std::string> restart_commands_;
  Status reply_;
  AttachId attaches_ = 0;
  std::map<AttachId, std::string> node_of_attach_;
  std::map<std::string, AttachId> attach_of_;
  std::map<std::string, std::vector<WorkerState>> workers_;
  std::set<std::string> lost_;
};

}  // namespace holdfast::coord
