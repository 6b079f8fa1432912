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
  LifeId life;  // of the store; 0 (tests): run ids do without
  std::chrono::nanoseconds node_lease = std::chrono::seconds(3);
  /// A node that counts as lost, and was not heard of for so long, is replaced; its agent may only
  /// have been restarted. Where its ranks are gone, too, others end for want of them, and it is
  /// replaced at once.
  std::chrono::nanoseconds replace_after = std::chrono::seconds(4);
  /// The same for a node that fell silent while its machine acknowledged what was sent to it, since
  /// its agent may only stand still; and for nodes that went together, since networks do that.
  std::chrono::nanoseconds replace_silent_after = std::chrono::seconds(10);
  /// While the others still seal newer versions its ranks are well, and it is waited for so long.
  std::chrono::nanoseconds replace_moving_after = std::chrono::seconds(60);
  /// Who else dies within this of the first death is taken for its consequence, unless it was
  /// killed.
  std::chrono::nanoseconds settle = std::chrono::milliseconds(150);
  /// From a node that is well, something is heard more often.
  std::chrono::nanoseconds quiet = std::chrono::milliseconds(1200);
  /// A worker that its node does not know of after so long was not started.
  std::chrono::nanoseconds launch_timeout = std::chrono::seconds(20);
  std::chrono::nanoseconds backoff_first = std::chrono::seconds(1);
  std::chrono::nanoseconds backoff_max = std::chrono::seconds(60);
  uint32_t strikes_max = 3;  // a node that broke so many launches is quarantined
  uint32_t incidents_max = 1000;
  uint32_t port_seed = 0;
  bool can_ask = false;  // there is a command that starts jobs again which others launched
  uint32_t command_attempts = 5;
  std::chrono::nanoseconds command_retry_first = std::chrono::seconds(10);
  std::chrono::nanoseconds command_retry_max = std::chrono::minutes(5);
  std::chrono::nanoseconds command_cooldown = std::chrono::seconds(30);  // between two of a job
  DetectAction detect_action = DetectAction::kRestart;
  /// Every rank of a hang waits in communication: nothing will move any more.
  std::chrono::nanoseconds restart_stuck_after = std::chrono::minutes(1);
  /// The others wait for ranks that are elsewhere: they may evaluate, read or compile.
  std::chrono::nanoseconds restart_absent_after = std::chrono::minutes(10);
};

struct RunView {
  RunRecord record;
  Incarnation incarnation;
  std::vector<std::string> spares;
  std::vector<std::pair<std::string, WorkerState>> workers;  // with their nodes, by rank
};

/// Runs jobs: decides where workers run, notices that they, their nodes or their progress end, and
/// starts them again. Pure like State, beside which it stands: it sees the same events and what
/// State made of them, and its effects are stored and sent with State's. A launch is a run id;
/// State makes an incarnation of it when the first rank joins, which fences what is left of the one
/// before. Thread-compatible.
class Supervisor {
 public:
  Supervisor(const SupervisorOptions& options, const Records& records, Instant at);

  /// After State::Apply(event), with its effects.
  std::vector<Effect> Observe(const Event& event, std::span<const Effect> effects, Instant at);
  std::vector<Effect> Apply(const RunEvent& event, Instant at);

  /// Of one job, or of all.
  std::vector<RunView> Runs(const std::string& job) const;
  /// Newest first.
  std::vector<IncidentRecord> Incidents(const std::string& job, uint64_t id) const;
  std::vector<QuarantineRecord> Quarantined() const;
  /// Nodes with a GPU that needs a reset or a repair, as far as nobody released them.
  std::vector<std::string> Suspects() const;

 private:
  struct GpuError {
    std::string what;
    XidClass kind = XidClass::kOther;
    Clock::TimePoint at;
  };
  struct Node {
    bool attached = false;
    bool in_doubt = false;  // its stream has ended: it is lost, or comes back at once
    bool silent = false;    // it is away without its stream having ended
    bool together = false;  // it went within a lease of another
    AttachId attach = 0;
    uint64_t agent_start = 0;
    std::string worker_address;
    Clock::TimePoint heard;
    Clock::TimePoint since;  // it is attached, or away
    std::vector<WorkerState> workers;
    uint64_t gpu_errors_told = 0;  // the highest number, of this agent
    std::deque<GpuError> gpu_errors;
  };
  /// How a launch broke.
  struct Failure {
    std::string kind;
    std::string what;
    std::vector<std::string> evidence;
    std::vector<Rank> ranks;
    std::vector<std::string> nodes;
    bool avoid_nodes = false;
    Clock::TimePoint healthy_until;
    std::string own_end = {};     // not empty: how a worker ended that nobody killed
    std::string last_lines = {};  // of that worker
  };
  struct Run {
    RunRecord record;
    Incarnation incarnation;  // of the current launch; 0: no rank has joined
    bool committed = false;   // the current launch has
    Clock::TimePoint launched_at;
    Clock::TimePoint not_before;  // back-off
    std::optional<Clock::TimePoint> first_death;
    std::map<Rank, WorkerState> ended;  // of the current launch
    std::map<std::string, uint32_t> strikes;
    std::set<std::string> avoid;
    /// Workers that ended of themselves, in launches in a row that committed nothing.
    struct OwnEnd {
      std::string node;
      std::string how;
      bool joined = false;  // a rank of that launch had joined
    };
    std::vector<OwnEnd> own_ends;
    Clock::TimePoint stop_at;
    VersionId stop_target;
  };
  /// What is remembered of a job's hangs.
  struct Hangs {
    Incarnation incarnation;
    std::set<std::string> noted;  // of that incarnation
    uint64_t restarted_step = 0;
    Clock::Duration restarted_after{};  // 0: none was restarted
  };
  /// restart.command for a job that others launched.
  struct Ask {
    Incarnation incarnation;  // that broke
    uint64_t incident = 0;
    uint32_t attempts = 0;
    bool running = false;
    bool over = false;  // it succeeded, was given up, or is not wanted any more
    Clock::TimePoint next_at;
  };
  struct Progress {
    VersionId memory;  // newest committed
    VersionId disk;
    VersionId sealed;  // newest that any rank has
    Clock::TimePoint sealed_at;
    Incarnation incarnation;  // the newest: nothing later can be sealed
  };

  // supervisor.cc
  void On(const RunWanted& event);
  void On(const StopWanted& event);
  void On(const QuarantineWanted& event);
  void On(const GpuFailed& event);
  void See(const NodeAttached& event);
  void See(const NodeReported& event);
  void SeeEffect(const Effect& effect);
  void SeeLineage(const LineageRecord& lineage, LineageChange change);
  void SeeCommit(const PutVersion& put);
  void RefillBudget(Run& run, Step committed);
  void Advance();
  void Advance(Run& run);
  void LookAtWorkers(Run& run);
  void TryLaunch(Run& run);
  void Launch(Run& run, const Placement& placement);
  void End(Run& run, RunPhase phase, std::string why);
  void Store(const Run& run);
  void Answer(RequestId request, Status outcome);
  Run* Find(const std::string& job);
  std::set<std::string> Usable(const Run* run) const;
  WorkersOrder OrderFor(const Run& run, const std::string& node) const;
  void Tell(const std::string& node, const std::string& job);
  void TellAll(const Run& run);
  void Say(AttachId attach, Directive directive);
  const Run* SeatedAt(const std::string& node) const;

  // supervisor_faults.cc
  void LookForFailure(Run& run);
  bool AnyInDoubt(const Run& run) const;
  std::optional<Failure> LostNode(const Run& run) const;
  Clock::Duration PatienceWith(const Node& node) const;
  void NoteWhoWentTogether(Node& gone);
  std::optional<Failure> Deaths(const Run& run) const;
  void Fail(Run& run, Failure failure);
  bool IsOwnFault(const Run& run) const;
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
  void On(const FaultFound& event);
  std::optional<FaultAction> Decide(const FaultFound& event, const Run* run);
  Clock::Duration PatienceWith(const FaultFound& event, const Run* run) const;

  // supervisor_asks.cc
  void On(const RestartCommandEnded& event);
  void On(const AcknowledgeWanted& event);
  void RestoreAsks(const Records& records);
  bool StartAsk(const FaultFound& event, IncidentRecord& incident);
  void AdvanceAsks();
  void EndAsk(const std::string& job, Incarnation newer);

  // supervisor_gpus.cc
  void Restore(const SuspectRecord& record);
  void Suspect(const std::string& node, const std::string& why);
  void Trust(const std::string& node);
  bool IsSuspect(const std::string& node) const;
  bool HardwareFailedLately(const std::string& node) const;
  void AddGpuErrors(const std::vector<std::string>& nodes, Failure& failure) const;
  std::set<std::string> ToAvoid(const Run& run) const;

  SupervisorOptions options_;
  std::map<std::string, Node> nodes_;
  std::map<std::string, Run> runs_;  // by job
  std::map<std::string, Progress> progress_;
  std::map<std::string, Hangs> hangs_;                  // by job
  std::map<std::string, Ask> asks_;                     // by job that others launched
  std::map<std::string, Clock::TimePoint> cool_until_;  // restart.command, by job
  std::map<uint64_t, IncidentRecord> incidents_;
  std::map<std::string, QuarantineRecord> quarantine_;
  std::map<std::string, SuspectRecord> suspects_;
  uint64_t next_incident_ = 1;
  /// The event may have consequences. Reports without news come by the thousand.
  bool due_ = false;
  /// The coordinator did not run: until then nodes are not blamed for what was not heard of them.
  Clock::TimePoint patient_until_;
  Instant at_;
  std::vector<Effect> effects_;
};

}  // namespace holdfast::coord
