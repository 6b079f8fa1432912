#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/api/run_types.h"
#include "coordinator/api/types.h"
#include "coordinator/state/records.h"
#include "coordinator/state/run_records.h"
#include "storage/base/clock.h"

// What happens to the state, and what the state wants done about it.

namespace holdfast::coord {

/// When an event is applied. `now` passes only while the coordinator runs; `wall_nanos` is for
/// display alone.
struct Instant {
  Clock::TimePoint now;
  int64_t wall_nanos = 0;
};

/// Names a call that waits for its answer; 0 is none.
using RequestId = uint64_t;
/// Names one Attach stream; never used twice.
using AttachId = uint64_t;

// ---- events ----

struct NodeAttached {
  AttachId attach = 0;
  std::string node;
  uint64_t agent_start = 0;
  std::string data_address;
  std::vector<Holding> holdings;  // all that the node has
  Epoch epoch_seen;
  NodeHealth health;
  std::string peer_address = {};  // empty: takes part in no parity group
  Labels labels = {};
  std::string worker_address = {};  // empty: launches no workers
  std::vector<WorkerState> workers = {};
  uint64_t agent_id = 0;  // the same for all starts of one agent; 0: an older agent
  std::vector<LocalRank> ranks = {};  // all that the node knows of
  uint64_t disk_every = 0;            // it writes steps divisible by this; 0: every step
  LifeId life_seen = {};  // that epoch_seen counts in; 0: none
};

/// The stream ended; the node has a short grace to attach again.
struct NodeDetached {
  std::string node;
  AttachId attach = 0;
};

/// The node is out of reach for certain.
struct NodeLost {
  std::string node;
};

struct NodeReported {
  RequestId request = 0;
  std::string node;
  uint64_t agent_start = 0;
  Epoch epoch;
  std::vector<Holding> holdings;
  std::vector<Missing> missing;
  std::vector<Gone> gone;
  std::vector<Prepared> prepared;
  NodeHealth health;
  std::vector<WorkerState> workers = {};  // all that the node has
  std::vector<LocalRank> ranks = {};      // all that the node knows of
  std::vector<TierWanted> wanted = {};
};

/// What an agent knows of the process that joins.
enum class JoinStart : uint8_t {
  kNotSaid = 0,
  kNew = 1,     // it joins for the first time
  kReturn = 2,  // it joined before; its connection was cut, or it opens another client
};

struct RankJoined {
  RequestId request = 0;
  std::string node;
  uint64_t agent_start = 0;
  std::string job;
  std::string run_id;
  Rank rank;
  uint32_t world = 0;
  uint32_t uid = 0;
  uint64_t slot_bytes = 0;  // room of one of the rank's slots; 0: not said
  JoinStart start = JoinStart::kNotSaid;
  Incarnation incarnation_before = {};  // of a process that returns
};

struct RestoreWanted {
  RequestId request = 0;
  std::string node;
  std::string job;
  Incarnation incarnation;
  Rank rank;
  VersionId wanted;  // incarnation 0: the newest restorable
  /// The rank reads what it needs of all ranks' shards, wherever they lie: nothing is prepared, and
  /// the version may have been saved by a world of another size.
  bool view = false;
};

/// The caller no longer waits.
struct RestoreGivenUp {
  RequestId request = 0;
};

struct PinSet {
  RequestId request = 0;
  std::string job;
  VersionId version;
  bool pinned = false;
};

/// How many versions of one job stay on disk; `keep_last` 0: the coordinator's rule for both.
struct RetentionSet {
  RequestId request = 0;
  std::string job;
  uint64_t keep_last = 0;
  uint64_t keep_every = 0;
};

/// Everything of the job goes: versions, records, name.
struct JobForgotten {
  RequestId request = 0;
  std::string job;
};

/// The run that launches the job's trainers began, or ended.
struct RunSeen {
  std::string job;
  bool active = false;
  bool finished = false;  // it ended with success, or because somebody stopped it
};

/// Versions of another life are to be taken into this one.
struct AdoptWanted {
  RequestId request = 0;
  std::string job;  // empty: all
  LifeId life;      // 0: any
  bool dry_run = false;
};

/// Time passed.
struct Tick {
  /// The coordinator itself did not run before: what nodes said meanwhile is still on its way, and
  /// nobody is found lost for a lease.
  bool resumed = false;
};

using Event = std::variant<NodeAttached, NodeDetached, NodeLost, NodeReported, RankJoined,
                           RestoreWanted, RestoreGivenUp, PinSet, RetentionSet, JobForgotten,
                           AdoptWanted, RunSeen, Tick>;

// ---- effects, in the order in which they are to be stored; replies and sends only after that ----

struct PutJob {
  JobRecord record;
};

struct EraseJob {
  std::string job;
};

struct EraseLineage {
  std::string job;
  Incarnation incarnation;
};

enum class LineageChange : uint8_t { kOpened, kPlanned, kDecided };

struct PutLineage {
  LineageRecord record;
  LineageChange change = LineageChange::kOpened;
};

struct PutVersion {
  VersionRecord record;
  uint32_t committed_tier_bit = 0;  // not 0: this is the commit at that tier
};

struct EraseVersion {
  std::string job;
  VersionId version;
};

struct PutRun {
  RunRecord record;
};

struct PutIncident {
  IncidentRecord record;
  bool opened = false;  // it is new
};

struct EraseRun {
  std::string job;
};

struct EraseIncident {
  uint64_t id = 0;
};

struct PutQuarantine {
  QuarantineRecord record;
};

struct EraseQuarantine {
  std::string node;
};

struct PutSuspect {
  SuspectRecord record;
};

struct EraseSuspect {
  std::string node;
};

/// A version of another life, and whether it can be taken into this one.
struct AdoptedVersion {
  std::string job;
  LifeId life;
  VersionId version;
  uint32_t world = 0;
  uint32_t ranks = 0;  // of them have a whole copy
  uint64_t bytes = 0;
  uint32_t tiers = 0;   // mask of TierBit: where it is committed
  std::string why_not;  // empty: it is taken
};

/// The answer to a call. Which fields count depends on the call.
struct Reply {
  RequestId request = 0;
  Status outcome;
  Incarnation incarnation;    // of a join
  VersionId version;          // of a restore, of a pin
  Tier tier = Tier::kMemory;  // of a restore
  uint32_t world = 0;         // of a restore: ranks that saved the version
  std::vector<std::string> nodes = {};  // of a job that is forgotten: those that are away
  std::vector<AdoptedVersion> adopted = {};
};

/// The node is attached; its directives follow. Sent again to a node that fell silent, to learn
/// whether its machine acknowledges what is sent to it.
struct Welcome {
  LifeId life;
};

using Directive = std::variant<JobWord, PrepareOrder, RemoveOrder, WorkersOrder, Welcome>;

struct Send {
  AttachId attach = 0;
  Directive directive;
};

/// Ends an Attach stream with an error.
struct CloseAttach {
  AttachId attach = 0;
  Status why;
};

/// A shard that was missing is back.
struct Repaired {
  std::string job;
  std::string node;
  ShardKey shard;
  Tier tier = Tier::kMemory;
};

/// The node counts as lost until it attaches again.
struct NodeGone {
  std::string node;
  std::string why;
  bool silent = false;  // its stream had not ended: it may only stand still
};

/// A job that somebody else launched has to be started again.
struct AskRestart {
  IncidentRecord incident;
};

/// Something that a person should see in the log.
struct Finding {
  std::string job;
  std::string node;
  Status what;
  std::string kind = {};         // of the incident that it is; empty: see the status
  std::vector<Rank> ranks = {};  // with `kind`
};

using Effect = std::variant<PutJob, EraseJob, PutLineage, EraseLineage, PutVersion, EraseVersion,
                            PutRun, EraseRun, PutIncident, EraseIncident, PutQuarantine,
                            EraseQuarantine, PutSuspect, EraseSuspect, Reply, Send, CloseAttach,
                            NodeGone, AskRestart, Finding, Repaired>;

}  // namespace holdfast::coord
