#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/restart/options.h"
#include "coordinator/restart/run_events.h"
#include "coordinator/restart/xid.h"
#include "coordinator/state/events.h"
#include "coordinator/state/records.h"

// The data of all runs. Every rule of this room is a function of this table, the options and the
// time, and no module keeps other data. After a restart of the coordinator, the table is built
// again from the stored records and from what the nodes report when they attach.

namespace holdfast::coord {

struct GpuError {
  std::string what;
  XidClass kind = XidClass::kOther;
  Clock::TimePoint at;
};

struct WorkerNode {
  bool attached = false;
  bool stream_ended = false;       // while attached: the node is lost soon unless it attaches again
  bool silent = false;             // lost although its stream had not ended
  bool lost_together = false;      // lost within a lease of another node
  std::optional<AttachId> attach;  // the newest since the start of the coordinator
  uint64_t agent_start = 0;
  std::string worker_address;
  bool worker_users = false;  // workers get the user of their run; older agents use their own
  Clock::TimePoint last_contact;
  Clock::TimePoint state_since;  // when `attached` last changed
  std::vector<WorkerState> workers;
  uint64_t newest_gpu_error = 0;  // highest sequence number of this agent
  std::deque<GpuError> gpu_errors;
};

struct Run {
  RunRecord record;
  std::optional<Incarnation> incarnation;  // of the current launch, once a rank has joined
  bool committed = false;                  // the current launch has committed a version
  Status restore_refused;                  // why the ranks of the current launch cannot restore
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
  std::optional<VersionId> stop_target;  // absent: nothing was saved
};

/// A restart because of a hang.
struct HangRestart {
  uint64_t step = 0;           // that the hang began at
  Clock::Duration patience{};  // before the restart
};

/// History of a job's hangs.
struct HangHistory {
  std::optional<Incarnation> incarnation;
  std::set<std::string> noted;         // hangs of that incarnation that have an incident
  std::optional<HangRestart> restart;  // the last one
};

/// Runs of restart.command for one fault of a job that another launcher started.
struct ExternalRestart {
  std::optional<Incarnation> incarnation;  // that failed; absent: it has no record any more
  uint64_t incident = 0;
  uint32_t attempts = 0;
  bool running = false;
  bool over = false;  // it succeeded, was abandoned, or is no longer needed
  Clock::TimePoint next_at;
};

struct JobProgress {
  std::optional<VersionId> memory;  // newest committed
  std::optional<VersionId> disk;
  std::optional<VersionId> sealed;            // newest that any rank has sealed
  std::optional<Clock::TimePoint> sealed_at;  // of a report since the start of the coordinator
  std::optional<Incarnation> incarnation;     // the newest; reports of later ones are ignored
};

struct RunTable {
  std::map<std::string, WorkerNode> nodes;
  std::map<std::string, Run> runs;                           // by job
  std::map<std::string, JobProgress> progress;               // by job
  std::map<std::string, HangHistory> hangs;                  // by job
  std::map<std::string, ExternalRestart> external_restarts;  // by job of another launcher
  std::map<std::string, Clock::TimePoint> cooldown_until;    // of restart.command, by job
  std::map<uint64_t, IncidentRecord> incidents;
  std::map<std::string, QuarantineRecord> quarantine;
  std::map<std::string, DrainRecord> drains;
  std::map<std::string, SuspectRecord> suspects;
  /// By node: the number of the self-test that precedes the release of the node. Not stored.
  std::map<std::string, uint64_t> self_tests;
  uint64_t last_self_test = 0;
  uint64_t next_incident = 1;
  /// The coordinator was paused. Until this time no node is blamed for its silence.
  Clock::TimePoint grace_until;
};

/// What a rule reads.
struct RunReadContext {
  const SupervisorOptions& options;
  Instant at;
  const RunTable& table;
};

/// What a transition reads and changes while one event is applied. Effects are stored and sent in
/// the order in which they were added.
struct RunContext {
  const SupervisorOptions& options;
  Instant at;
  RunTable& table;
  std::vector<Effect>& effects;
  // NOLINTNEXTLINE(google-explicit-constructor): a function that only reads takes either context.
  operator RunReadContext() const { return {options, at, table}; }
};

/// Returns the newest run of the job; nullptr: it never had one.
Run* FindRun(RunContext& context, const std::string& job);

/// Adds the effect that stores the record of the run.
void StoreRun(RunContext& context, const Run& run);

/// Returns the launched run that has workers on the node, or nullptr.
const Run* PlacedOn(const RunReadContext& context, const std::string& node);

/// Whether a node still reports running workers of an earlier launch of the run.
bool OldWorkersRun(const RunReadContext& context, const Run& run);

/// Whether `lineage` belongs to the run's current launch. If the trainers roll back, they open an
/// incarnation whose run ID is that of the launch with a suffix "+…".
bool IsStartOf(const RunRecord& run, const LineageRecord& lineage);

/// Quarantines the node and adds the effect that stores it.
void QuarantineNode(RunContext& context, const std::string& node, const std::string& why);

/// Adds the reply to a call, if one waits.
void Answer(RunContext& context, std::optional<RequestId> request, Status outcome);

/// Adds the effect that sends the directive on the Attach stream.
void SendDirective(RunContext& context, AttachId attach, Directive directive);

}  // namespace holdfast::coord
