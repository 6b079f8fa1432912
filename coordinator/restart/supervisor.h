#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "coordinator/restart/placement.h"
#include "coordinator/restart/run_events.h"
#include "coordinator/restart/xid.h"
#include "coordinator/state/events.h"
#include "coordinator/state/records.h"

namespace holdfast::coord {

struct SupervisorOptions {
  LifeId life;  // of the store; 0 (tests): run IDs do not contain it
  std::chrono::nanoseconds node_lease = std::chrono::seconds(3);
  /// A lost node is replaced when its last message is older than this: its agent may only be
  /// restarting. If its ranks are gone too, other ranks end because of that, and the node is
  /// replaced at once.
  std::chrono::nanoseconds replace_after = std::chrono::seconds(4);
  /// The same limit for a silent node whose machine still acknowledges packets, since its agent may
  /// only be stopped, and for nodes that were lost together, since a network fault may be the
  /// cause.
  std::chrono::nanoseconds replace_silent_after = std::chrono::seconds(10);
  /// Limit while other nodes still seal newer versions: the lost node's ranks then still run.
  std::chrono::nanoseconds replace_moving_after = std::chrono::seconds(60);
  /// A worker that ends within this time of the first counts as a consequence, unless a signal
  /// killed it.
  std::chrono::nanoseconds settle = std::chrono::milliseconds(150);
  /// A healthy node sends messages more often than this.
  std::chrono::nanoseconds heartbeat_late_after = std::chrono::milliseconds(1200);
  /// A worker that its node does not report after this time counts as not started.
  std::chrono::nanoseconds launch_timeout = std::chrono::seconds(20);
  std::chrono::nanoseconds backoff_first = std::chrono::seconds(1);
  std::chrono::nanoseconds backoff_max = std::chrono::seconds(60);
  uint32_t strikes_max = 3;  // a node that broke this many launches in a row is quarantined
  uint32_t incidents_max = 1000;
  uint32_t port_seed = 0;
  bool has_restart_command = false;  // restart.command is set, for jobs of other launchers
  uint32_t command_attempts = 5;
  std::chrono::nanoseconds command_retry_first = std::chrono::seconds(10);
  std::chrono::nanoseconds command_retry_max = std::chrono::minutes(5);
  /// Minimum time between two runs of restart.command for one job.
  std::chrono::nanoseconds command_cooldown = std::chrono::seconds(30);
  DetectAction detect_action = DetectAction::kRestart;
  /// Patience for a hang in which every rank waits in communication: no progress is possible.
  std::chrono::nanoseconds restart_stuck_after = std::chrono::minutes(1);
  /// Patience for a hang in which ranks wait for others that are elsewhere, and may evaluate, read
  /// or compile.
  std::chrono::nanoseconds restart_absent_after = std::chrono::minutes(10);
};

struct RunStatus {
  RunRecord record;
  Incarnation incarnation;
  std::vector<std::string> spares;
  std::vector<std::pair<std::string, WorkerState>> workers;  // with their nodes, by rank
};

/// Runs jobs: places workers, detects that workers, nodes or progress are lost, and restarts the
/// job. Pure like State: it receives the same events together with State's effects, and its own
/// effects are stored and sent with State's. Each launch has a run ID. State opens an incarnation
/// for it when the first rank joins, which fences what is left of the previous launch.
/// Thread-compatible.
class Supervisor {
 public:
  Supervisor(const SupervisorOptions& options, const Records& records, Instant at);

  /// Call after State::Apply(event), with the effects of that call.
  std::vector<Effect> Observe(const Event& event, std::span<const Effect> effects, Instant at);
  std::vector<Effect> Apply(const RunEvent& event, Instant at);

  /// Returns the runs of one job, or of all jobs if `job` is empty.
  std::vector<RunStatus> Runs(const std::string& job) const;
  /// Returns incidents, newest first. An empty `job` and `id` 0 match all.
  std::vector<IncidentRecord> Incidents(const std::string& job, uint64_t id) const;
  std::vector<QuarantineRecord> Quarantined() const;
  /// Returns the nodes with a GPU that needs a reset or a repair, unless an operator released them.
  std::vector<std::string> Suspects() const;

 private:
  struct GpuError {
    std::string what;
    XidClass kind = XidClass::kOther;
    Clock::TimePoint at;
  };
  struct Node {
    bool attached = false;
    bool stream_ended = false;   // while attached: the node is lost, or attaches again at once
    bool silent = false;         // lost although its stream had not ended
    bool lost_together = false;  // lost within a lease of another node
    AttachId attach = 0;
    uint64_t agent_start = 0;
    std::string worker_address;
    Clock::TimePoint last_contact;
    Clock::TimePoint state_since;  // when `attached` last changed
    std::vector<WorkerState> workers;
    uint64_t newest_gpu_error = 0;  // highest sequence number of this agent
    std::deque<GpuError> gpu_errors;
  };
  /// How a launch failed, and the cause.
  struct Failure {
    std::string kind;
    std::string what;
    std::vector<std::string> evidence;
    std::vector<Rank> ranks;
    std::vector<std::string> nodes;
    bool avoid_nodes = false;
    Clock::TimePoint healthy_until;
    std::string own_exit = {};    // how the worker exited on its own; empty: it was killed
    std::string last_lines = {};  // of that worker's output
  };
  struct Run {
    RunRecord record;
    Incarnation incarnation;  // of the current launch; 0: no rank has joined
    bool committed = false;   // the current launch has committed a version
    Clock::TimePoint launched_at;
    Clock::TimePoint not_before;  // back-off
    std::optional<Clock::TimePoint> first_failure_at;
    std::map<Rank, WorkerState> ended;  // of the current launch
    std::map<std::string, uint32_t> strikes;
    std::set<std::string> avoid;
    /// Workers that exited on their own, in consecutive launches that committed nothing.
    struct OwnExit {
      std::string node;
      std::string how;
      bool joined = false;  // a rank of that launch had joined
    };
    std::vector<OwnExit> own_exits;
    Clock::TimePoint stop_at;
    VersionId stop_target;
  };
  /// History of a job's hangs.
  struct Hangs {
    Incarnation incarnation;
    std::set<std::string> noted;  // hangs of that incarnation that have an incident
    uint64_t restarted_step = 0;
    Clock::Duration restarted_after{};  // patience at the last restart; 0: no restart
  };
  /// Runs of restart.command for one fault of a job that another launcher started.
  struct ExternalRestart {
    Incarnation incarnation;  // that failed
    uint64_t incident = 0;
    uint32_t attempts = 0;
    bool running = false;
    bool over = false;  // it succeeded, was abandoned, or is no longer needed
    Clock::TimePoint next_at;
  };
  struct Progress {
    VersionId memory;  // newest committed
    VersionId disk;
    VersionId sealed;  // newest that any rank has sealed
    Clock::TimePoint sealed_at;
    Incarnation incarnation;  // the newest; reports of later ones are ignored
  };

  // supervisor.cc
  void On(const RunRequested& event);
  void On(const StopRequested& event);
  void On(const QuarantineRequested& event);
  void On(const GpuFailed& event);
  void On(const NodeAttached& event);
  void On(const NodeReported& event);
  void OnEffect(const Effect& effect);
  void OnLineage(const LineageRecord& lineage, LineageChange change);
  void OnCommit(const PutVersion& put);
  void RefillBudget(Run& run, Step committed);
  void Advance();
  void Advance(Run& run);
  void CheckWorkers(Run& run);
  void TryLaunch(Run& run);
  void Launch(Run& run, const Placement& placement);
  void End(Run& run, RunPhase phase, std::string why);
  void Store(const Run& run);
  void Answer(RequestId request, Status outcome);
  Run* Find(const std::string& job);
  std::set<std::string> Usable(const Run* run) const;
  SetWorkers WorkersFor(const Run& run, const std::string& node) const;
  void SendWorkers(const std::string& node, const std::string& job);
  void SendWorkersToNodes(const Run& run);
  void SendDirective(AttachId attach, Directive directive);
  const Run* PlacedOn(const std::string& node) const;

  // supervisor_faults.cc
  void FindFailure(Run& run);
  bool AnyNodeUnresponsive(const Run& run) const;
  std::optional<Failure> FindLostNode(const Run& run) const;
  Clock::Duration PatienceFor(const Node& node) const;
  void MarkLostTogether(Node& lost);
  std::optional<Failure> FindWorkerFailure(const Run& run) const;
  void Fail(Run& run, Failure failure);
  bool IsJobFault(const Run& run) const;
  std::string NoRestartLeft(const Run& run) const;
  void Strike(Run& run, const Failure& failure);
  IncidentRecord& OpenIncident(const std::string& job, const Failure& failure);
  void Note(const std::string& job, const Failure& failure, const std::string& plan);
  void StoreIncident(const IncidentRecord& incident, bool opened);
  int64_t MsSince(const IncidentRecord& incident) const;
  void MarkIncidents(const std::string& job, int64_t IncidentRecord::*time);
  void CloseIncidents(const std::string& job, IncidentState state);
  bool OldWorkersRun(const Run& run) const;

  // supervisor_hangs.cc
  void On(const FaultDetected& event);
  std::optional<FaultAction> Decide(const FaultDetected& event, const Run* run);
  Clock::Duration PatienceFor(const FaultDetected& event, const Run* run) const;

  // supervisor_commands.cc
  void On(const RestartCommandEnded& event);
  void On(const AcknowledgeRequested& event);
  void LoadRestartCommands(const Records& records);
  bool StartRestartCommand(const FaultDetected& event, IncidentRecord& incident);
  void AdvanceRestartCommands();
  void EndRestartCommand(const std::string& job, Incarnation newer);

  // supervisor_gpus.cc
  void RestoreSuspect(const SuspectRecord& record);
  void MarkSuspect(const std::string& node, const std::string& why);
  void ClearSuspect(const std::string& node);
  bool IsSuspect(const std::string& node) const;
  bool HardwareFailedRecently(const std::string& node) const;
  void AddGpuErrors(const std::vector<std::string>& nodes, Failure& failure) const;
  std::set<std::string> NodesToAvoid(const Run& run) const;

  SupervisorOptions options_;
  std::map<std::string, Node> nodes_;
  std::map<std::string, Run> runs_;  // by job
  std::map<std::string, Progress> progress_;
  std::map<std::string, Hangs> hangs_;                        // by job
  std::map<std::string, ExternalRestart> external_restarts_;  // by job of another launcher
  std::map<std::string, Clock::TimePoint> cooldown_until_;    // of restart.command, by job
  std::map<uint64_t, IncidentRecord> incidents_;
  std::map<std::string, QuarantineRecord> quarantine_;
  std::map<std::string, SuspectRecord> suspects_;
  uint64_t next_incident_ = 1;
  /// The event may have consequences. False for a report without changes, of which there are
  /// thousands.
  bool advance_needed_ = false;
  /// The coordinator was paused. Until this time no node is blamed for its silence.
  Clock::TimePoint grace_until_;
  Instant at_;
  std::vector<Effect> effects_;
};

}  // namespace holdfast::coord
