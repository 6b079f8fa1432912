#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "coordinator/contract/directives.h"
#include "coordinator/contract/reports.h"
#include "coordinator/contract/requests.h"
#include "coordinator/state/identity_records.h"
#include "coordinator/state/records.h"
#include "coordinator/state/run_records.h"

// The inputs of State (events) and its outputs (effects).

namespace holdfast::coord {

/// When an event is applied. `now` advances only while the coordinator runs. `wall_nanos` is for
/// display, and for tokens and certificates, which end while no coordinator runs, too.
struct Instant {
  Clock::TimePoint now;
  int64_t wall_nanos = 0;
};

/// Identifies a call that waits for a reply. Events without one are not answered.
using RequestId = uint64_t;
/// Identifies one Attach stream; never reused.
using AttachId = uint64_t;

// ---- events ----

struct NodeAttached {
  AttachId attach = 0;
  std::string node;
  uint64_t agent_start = 0;
  std::string data_address;
  std::vector<StoredReplica> replicas;  // the node's full inventory
  Epoch epoch_seen;
  NodeHealth health;
  std::string peer_address = {};  // empty: the node serves no peers
  Labels labels = {};
  std::string worker_address = {};  // empty: the node launches no workers
  bool worker_users = false;        // workers get the user of their run
  std::vector<WorkerState> workers = {};
  uint64_t agent_id = 0;  // the same for all starts of one agent; 0: from an older agent
  std::vector<LocalRank> ranks = {};  // all trainers of the node
  uint64_t disk_every = 0;            // the node writes steps divisible by this; 0: every step
  LifeId life_seen = {};              // the life that epoch_seen belongs to; 0: none
  bool no_parity = false;             // the node takes part in no parity group
  uint32_t shared_tiers = 0;          // mask of TierBit: the shared tiers that the node reaches
  std::vector<VersionCommit> commits = {};  // that the agent knows
};

/// The Attach stream has ended. The node counts as lost unless it attaches again within a short
/// grace period.
struct NodeDetached {
  std::string node;
  AttachId attach = 0;
};

/// The node is known to be unreachable.
struct NodeLost {
  std::string node;
};

struct NodeReported {
  std::optional<RequestId> request;
  std::string node;
  uint64_t agent_start = 0;
  Epoch epoch;
  std::vector<StoredReplica> replicas;
  std::vector<FailedReplica> failed;
  std::vector<RemovedReplica> removed;
  std::vector<Prepared> prepared;
  NodeHealth health;
  std::vector<WorkerState> workers = {};  // all workers of the node
  std::vector<LocalRank> ranks = {};      // all trainers of the node
  std::vector<TierWanted> wanted = {};
  /// The stream that the report belongs to, which a relay knows. Absent: the newest of the agent.
  std::optional<AttachId> attach;
};

struct RankJoined : JoinRequest {
  std::optional<RequestId> request = {};
  std::string node = {};
  uint64_t agent_start = 0;
  /// An older agent, which does not report whether the process joined before.
  bool may_have_joined = false;
};

struct RestoreRequested : RestoreRequest {
  RequestId request = 0;
  std::string node = {};
};

/// The caller of a RestoreRequested no longer waits.
struct RestoreAbandoned {
  RequestId request = 0;
  std::string job;
  Rank rank;
};

struct PinSet {
  std::optional<RequestId> request;
  std::string job;
  std::optional<VersionId> version;  // empty: the newest on disk
  bool pinned = false;
};

/// `holdfast verify` has checked a version.
struct VersionVerified {
  std::optional<RequestId> request;
  std::string job;
  VersionId version;
  Verification verification;  // without its time
};

/// An operator sets how many versions of one job stay on disk. With `keep_last` 0, the values of
/// the coordinator's configuration apply for both.
struct RetentionSet {
  std::optional<RequestId> request;
  std::string job;
  uint64_t keep_last = 0;
  uint64_t keep_every = 0;
};

/// An operator forgets a job: its versions, its records and its name are removed.
struct JobForgotten {
  std::optional<RequestId> request;
  std::string job;
};

/// An operator drains a node ahead of maintenance, ends that, or removes a node that is down.
struct DrainSet {
  std::optional<RequestId> request;
  std::string node;
  bool set = false;
  std::string why = {};
  bool move_runs = false;
  bool remove = false;
};

/// The run that launches the job's trainers started or ended.
struct RunStateChanged {
  std::string job;
  bool active = false;
  bool finished = false;  // it ended with success, or an operator stopped it
};

/// An operator adopts versions of another life.
struct AdoptRequested {
  std::optional<RequestId> request;
  std::string job;  // empty: all
  LifeId life;      // 0: any
  bool dry_run = false;
  std::optional<uint32_t> owner = {};  // user that the jobs without an owner get
};

/// An operator creates a join token.
struct TokenCreated {
  std::optional<RequestId> request;
  TokenRecord record;
};

/// A machine joins the cluster with a token.
struct TokenUsed {
  RequestId request = 0;
  std::string id;
  std::string secret_hash;
  std::string name;  // the name that the machine asks for
  std::string key;   // hash of its public key
  int64_t validity_s = 0;
};

/// The owner of a certificate gets the next one.
struct IdentityRenewed {
  RequestId request = 0;
  std::string role;
  std::string name;
  std::string key;           // hash of the new public key
  int64_t not_before_s = 0;  // of the certificate that the owner has
  int64_t validity_s = 0;
};

/// An operator revokes the certificates of a name.
struct IdentityRevoked {
  std::optional<RequestId> request;
  std::string role;
  std::string name;
  std::string why;
};

/// Time passed.
struct Tick {
  /// The coordinator was suspended before this tick. The nodes' reports of that time may still
  /// arrive, so no node is declared lost for one lease.
  bool resumed = false;
};

using Event = std::variant<NodeAttached, NodeDetached, NodeLost, NodeReported, RankJoined,
                           RestoreRequested, RestoreAbandoned, PinSet, VersionVerified,
                           RetentionSet, JobForgotten, DrainSet, AdoptRequested, RunStateChanged,
                           TokenCreated, TokenUsed, IdentityRenewed, IdentityRevoked, Tick>;

// ---- effects ----

// The caller stores the Put and Erase effects in order. After that it acts on the other effects.

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
  uint32_t committed_tier_bit = 0;  // not 0: this record commits the version at that tier
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
  bool opened = false;  // the incident is new
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

struct PutDrain {
  DrainRecord record;
};

struct EraseDrain {
  std::string node;
};

/// Without the drained nodes, every job would keep its newest version: runs with workers on this
/// node may leave it. Not stored; repeated with each tick while the node is drained.
struct RunsMayLeave {
  std::string node;
};

struct PutSuspect {
  SuspectRecord record;
};

struct EraseSuspect {
  std::string node;
};

struct PutToken {
  TokenRecord record;
};

struct EraseToken {
  std::string id;
};

struct PutIdentity {
  IdentityRecord record;
};

/// What a certificate states that is issued now.
struct IssuedIdentity {
  std::string role;
  std::string name;
  int64_t not_before_s = 0;  // seconds since 1970
  int64_t not_after_s = 0;
};

/// A version of another life, and whether it can be adopted.
/// What attached nodes know of the commit of a version of another life. The numbers are on the
/// wire.
enum class CommitEvidence : uint8_t {
  kNone = 1,         // no node knows that it was committed
  kCommitted = 2,    // it was committed; not all its shards are here
  kProven = 3,       // it was committed, and its shards are the committed ones
  kContradicted = 4  // its shards are not the committed ones, or nodes know different commits
};

struct AdoptedVersion {
  std::string job;
  LifeId life;
  VersionId version;
  uint32_t world = 0;
  uint32_t ranks = 0;    // ranks of the world that have a replica without damage
  uint32_t decoded = 0;  // ranks whose shards only their parity group has
  uint64_t bytes = 0;
  uint32_t tiers = 0;   // mask of TierBit: where the adopted version is committed
  std::string why_not;  // empty: the version can be adopted
  CommitEvidence commit = CommitEvidence::kNone;
};

/// The reply to a call. The kind of call determines which fields are set.
struct Reply {
  RequestId request = 0;
  Status outcome;
  Incarnation incarnation;              // of a join
  VersionId version;                    // of a restore, of a pin
  Tier tier = Tier::kMemory;            // of a restore
  uint32_t world = 0;                   // of a restore: number of ranks that saved the version
  std::vector<std::string> nodes = {};  // of a forgotten job: its nodes that are not attached
  std::vector<AdoptedVersion> adopted = {};
  IssuedIdentity issued = {};  // of a join with a token, of a renewal
};

/// The node is attached; its directives follow. Also sent to a silent node as a probe: if its
/// machine does not acknowledge the packet, the stream ends.
struct Welcome {
  LifeId life;
};

using Directive = std::variant<JobState, PrepareShard, RemoveVersion, SetWorkers, Welcome>;

struct Send {
  AttachId attach = 0;
  Directive directive;
};

/// Ends an Attach stream with an error.
struct CloseAttach {
  AttachId attach = 0;
  Status why;
};

/// A missing shard was repaired or rebuilt.
struct Repaired {
  std::string job;
  std::string node;
  ShardKey shard;
  Tier tier = Tier::kMemory;
};

/// The node counts as lost from now on, until it attaches again.
struct NodeDeclaredLost {
  std::string node;
  std::string why;
  bool silent = false;  // its stream has not ended: the agent may only be suspended
};

/// The caller runs restart.command, since a job that another launcher started needs a restart.
struct RunRestartCommand {
  IncidentRecord incident;
};

/// A finding that the caller logs for operators.
struct Finding {
  std::string job;
  std::string node;
  Status what;
  std::string kind = {};         // kind of the incident; empty: derived from the status
  std::vector<Rank> ranks = {};  // with `kind`
};

/// The ranks of an incarnation cannot restore: the version that they need is missing or does not
/// fit. Waiting ranks got this error, so they probably exit.
struct RestoreRefused {
  std::string job;
  Incarnation incarnation;
  Status why;
};

using Effect =
    std::variant<PutJob, EraseJob, PutLineage, EraseLineage, PutVersion, EraseVersion, PutRun,
                 EraseRun, PutIncident, EraseIncident, PutQuarantine, EraseQuarantine, PutDrain,
                 EraseDrain, RunsMayLeave, PutSuspect, EraseSuspect, PutToken, EraseToken,
                 PutIdentity, Reply, Send, CloseAttach, NodeDeclaredLost, RunRestartCommand,
                 Finding, Repaired, RestoreRefused>;

}  // namespace holdfast::coord
