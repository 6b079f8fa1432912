#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/state/events.h"
#include "coordinator/state/groups.h"
#include "coordinator/state/job.h"
#include "coordinator/state/queries.h"
#include "coordinator/state/records.h"

namespace holdfast::coord {

struct PeerOptions {
  bool enabled = true;
  GroupOptions groups;
  std::string domain_label = "rack";  // nodes with the same value are one failure domain
};

struct StateOptions {
  Epoch epoch;
  LifeId life;  // of the store; 0 (tests): every replica counts as of this life
  std::chrono::nanoseconds node_lease = std::chrono::seconds(3);
  /// How long after the end of its stream a node may attach again before it counts as lost.
  std::chrono::nanoseconds detach_grace = std::chrono::milliseconds(500);
  uint32_t keep_last = 3;   // newest versions on disk, at least 1
  uint64_t keep_every = 0;  // also keep every K-th step; 0: none
  PeerOptions peers;
  /// How long to wait before the repair of a missing shard, which its node may still be writing.
  std::chrono::nanoseconds repair_grace = std::chrono::seconds(2);
  /// How long a node may be away before another node takes its place in the parity groups and gets
  /// its shards of the versions on disk.
  std::chrono::nanoseconds rehome_after = std::chrono::minutes(10);
  /// How long after the newest version it is flushed to every tier.
  std::chrono::nanoseconds flush_after = std::chrono::seconds(1);
  /// How long a job may have no trainers before it counts as ended.
  std::chrono::nanoseconds end_grace = std::chrono::seconds(2);
  /// How long after its end a finished job's memory is released. For a job that ended without
  /// goodbyes the time is `release_dead_after`.
  std::chrono::nanoseconds release_after = std::chrono::seconds(5);
  std::chrono::nanoseconds release_dead_after = std::chrono::hours(1);
  /// How long after its end a job is forgotten; 0: never.
  std::chrono::nanoseconds forget_after{};
  /// How long a join with the run ID of ranks that still run waits for their end.
  std::chrono::nanoseconds rejoin_wait = std::chrono::seconds(4);
};

/// The coordinator's state of jobs, versions and nodes, and the rules that change it. Events go in
/// and effects come out; there are no threads, no I/O and no clock. The caller stores the Put and
/// Erase effects of an event, in order, before it acts on any other effect. If storing fails, the
/// caller discards the State and loads a new one from the store. Thread-compatible.
class State {
 public:
  /// Creates the state from `records` as read from the store. Returns DataLoss if they contradict
  /// each other.
  static Result<State> Load(const StateOptions& options, const Records& records, Instant at);

  std::vector<Effect> Apply(const Event& event, Instant at);

  // ---- operators' queries; see queries.h ----
  std::vector<NodeStatus> Nodes() const;
  /// Returns all jobs, or only the named one. NotFound: no such job.
  Result<std::vector<JobStatus>> Jobs(const std::string& job) const;
  /// Returns the versions of a job, newest first. NotFound: no such job.
  Result<std::vector<VersionStatus>> Versions(const std::string& job) const;
  /// Returns the nearest source of each shard of `version` (incarnation 0: the newest restorable).
  /// With `tier`, only replicas at that tier count. NotFound: no such job or version.
  /// FailedPrecondition: a rank has no source.
  Result<RestorePlanStatus> PlanRestore(const std::string& job, VersionId version,
                                        std::optional<Tier> tier) const;
  /// Returns every replica of every shard of a committed version, and the parity groups for the
  /// shards that have none. Fails for a version that is not fully available, unless `as_is`.
  Result<RestorePlanStatus> PlanAllReplicas(const std::string& job, VersionId version,
                                            bool as_is = false) const;
  /// Returns the impact on one job, or on all if `job` is empty, if `nodes` and all their replicas
  /// were lost. NotFound: no such job or node.
  Result<std::vector<NodeLossImpact>> ImpactOfLosing(const std::string& job,
                                                     const std::vector<std::string>& nodes) const;
  /// Agents whose attach was refused recently.
  std::vector<RefusedNode> Refused() const;
  LifeId life() const { return options_.life; }

 private:
  explicit State(const StateOptions& options) : options_(options) {}

  /// A PrepareShard without a reply yet. It outlives its restore task: a damaged source counts even
  /// if no rank waits for the shard any more.
  struct PendingPrepare {
    std::string job;
    VersionId version;
    Rank rank;
    Replica source;
    NodeIndex target = kNoNode;
    Tier into = Tier::kMemory;
    bool repair = false;
  };

  // state.cc: nodes and dispatch
  Status CheckAgent(const NodeAttached& event, Node& node);
  Status LoadLineage(const LineageRecord& record);
  Status LoadVersion(const VersionRecord& record);
  void On(const NodeAttached& event);
  void On(const NodeDetached& event);
  void On(const NodeLost& event);
  void On(const NodeReported& event);
  void On(const RankJoined& event);
  void On(const RestoreRequested& event);
  void On(const RestoreAbandoned& event);
  void On(const PinSet& event);
  void On(const RetentionSet& event);
  void On(const JobForgotten& event);
  void On(const RunStateChanged& event);
  void On(const AdoptRequested& event);
  void On(const Tick& event);
  void ApplyChanges();
  void ApplyChanges(Job& job);
  NodeIndex Intern(const std::string& name);
  Node* FindNode(const std::string& name);
  void MarkLost(NodeIndex node, std::string_view why, bool silent);
  void DropReplicasOf(NodeIndex node);
  void SendDirective(NodeIndex node, Directive directive);
  void Answer(RequestId request, Status outcome);
  void RecordFinding(const std::string& job, NodeIndex node, Status what);
  JobState JobStateOf(const Job& job) const;
  void SendJobStates(Job& job);
  JobRecord RecordOf(const Job& job) const;

  // lives.cc: replicas of other lives of the store
  static bool AreOfDifferentLives(const Job& job, Incarnation a, Incarnation b);
  std::vector<StoredReplica> AssignLife(std::vector<StoredReplica> replicas,
                                        LifeId life_seen) const;
  bool CountsInThisLife(const StoredReplica& report) const;
  void QuarantineReplica(NodeIndex node, const StoredReplica& report);
  bool HasQuarantined(const std::string& job) const;
  void DropQuarantined(NodeIndex node, const RemovedReplica& removed);
  void RecordRefused(const NodeAttached& event, const Status& why);
  std::vector<OtherLifeStatus> OtherLivesOf(const Node& node) const;
  struct Adoption;
  std::vector<Adoption> FindAdoptable(const AdoptRequested& event) const;
  std::string WhyNotAdopted(const Adoption& adoption) const;
  void Adopt(const Adoption& adoption);

  // join.cc: incarnations
  Status CheckJoin(const RankJoined& event, NodeIndex& node);
  Status CheckRun(const Job& job, const RankJoined& event) const;
  Incarnation HighestReported(const std::string& job) const;
  bool IsNewStart(const Job& job, const RankJoined& event) const;
  std::string RunningRanksText(const Job& job, const RankJoined& event) const;
  void AdmitRank(Job& job, const RankJoined& event, NodeIndex node);
  void AdvanceJoins(Job& job);
  void OpenIncarnation(Job& job, const RankJoined& event);
  void Place(Job& job, Rank rank, NodeIndex node);

  // commit.cc: replica reports, commit, abort
  void OnReplicasStored(NodeIndex node, std::vector<StoredReplica> replicas, bool inventory);
  void OnReplicaStored(NodeIndex node, const StoredReplica& report, bool inventory);
  void AddDamagedReplica(NodeIndex node, const StoredReplica& report, Job& job,
                         VersionState& version);
  DamagedReplica& RecordDamage(Job& job, VersionState& version, Rank rank, Replica replica,
                               const std::string& what);
  void CompareTensorReplicas(Job& job, VersionState& version);
  void ReportDisputedRestore(const Job& job, const VersionState& version);
  void UpdateRankProgress(NodeIndex node, const StoredReplica& report, bool inventory, Job& job);
  bool AdmitParity(NodeIndex node, const StoredReplica& report, Job& job);
  bool IsPlannedNode(NodeIndex node, const ShardKey& shard, Job& job);
  VersionState* Admit(NodeIndex node, const StoredReplica& report, Job& job);
  VersionState* AdmitNew(const StoredReplica& report, Job& job);
  void AbortSuperseded(Job& job, const StoredReplica& newer);
  void TryCommit(Job& job, VersionState& version, Tier tier);
  void Abort(Job& job, VersionState& version, bool store);
  void OnReplicaFailed(NodeIndex node, const FailedReplica& failed);
  void FailTier(Job& job, VersionState& version, Tier tier);
  void OnReplicaRemoved(NodeIndex node, const RemovedReplica& removed);
  void Store(const Job& job, VersionState& version, uint32_t committed_tier_bit);
  VersionState& Create(Job& job, VersionId id, uint32_t world, Phase phase);
  static bool IsDead(const Job& job, VersionId version);
  static bool IsAbandoned(const Job& job, VersionId version);
  static bool IsRestorable(const Job& job, const VersionState& version);
  /// The same, also counting the good chunks of damaged replicas.
  static bool MayBeRestorable(const Job& job, const VersionState& version);
  static VersionId NewestCommitted(const Job& job, Tier tier);
  static VersionId NewestRestorable(const Job& job);
  void AdvanceTargets(Job& job);
  static bool SelectsVersion(const Job& job, const TierTarget& target, VersionId version);

  // peers.cc: parity groups
  std::string WhyNoPeers(const Job& job) const;
  void PlanPeers(Job& job);
  void IndexGroups(Job& job, Incarnation incarnation);
  void PrunePlans(Job& job);
  std::optional<GroupPlan> GroupOf(const Job& job, Incarnation incarnation, uint32_t group,
                                   const VersionState* version) const;
  void SendGroupsOf(NodeIndex node);
  static VersionId PeerFloor(const Job& job);

  // restore.cc: restore plan and decision
  bool BarrierOpen(const Job& job) const;
  void AdvancePlan(Job& job);
  void AdvanceDecided(Job& job);
  bool AdvanceCandidate(Job& job);
  VersionId Choose(const Job& job) const;
  void SwitchTo(Job& job, VersionId candidate);
  bool RunRestoreTask(Job& job, Rank rank);
  static std::optional<Replica> PickSource(const Job& job, const RestoreTask& task,
                                           const VersionState& version, Rank rank);
  static void ResetRestoreTask(Job& job, RestoreTask& task);
  void Decide(Job& job);
  void DecideFresh(Job& job);
  void RefuseWaiters(Job& job, const Status& why, bool include_reshards = true);
  Status WhyNothingRestorable(const Job& job) const;
  Status WhyNotRestorable(const Job& job, VersionId wanted) const;
  std::string MissingText(const Job& job, const VersionState& version) const;
  std::string LostGroupsText(const Job& job, const VersionState& version) const;
  std::string MissingShardsText(const Job& job, const VersionState& version, uint32_t number) const;
  std::string AbsentNodes(const Job& job) const;
  void OnPrepared(NodeIndex node, const Prepared& prepared);
  void OnSourceFailed(Job& job, const PendingPrepare& pending, const Status& why);
  void FailRestoreTasksOf(Job& job, NodeIndex node, bool keep_ready);

  // restore_reshard.cc
  bool AnswerReshard(Job& job, const VersionState& version, const RestoreWaiter& waiter);

  // rollback.cc
  void AdvanceRollback(Job& job);
  bool AnswerRollback(Job& job, const RestoreWaiter& waiter, VersionId wanted);
  static const Replica* LocalReplica(const Job& job, const VersionState& version, Rank rank);
  static Tier ReshardTier(const VersionState& version);
  static Status WorldMismatch(const Job& job, const VersionState& version);

  // repair.cc
  void AdvanceRepairs(Job& job);
  void FindMissing(const Job& job, const VersionState& version,
                   std::map<RepairKey, Repair>& missing) const;
  bool IsRestoring(const Job& job) const;
  void CountUnderProtected(Job& job);
  std::vector<UnderProtectedStatus> UnderProtectedOf(const Job& job) const;
  void SendRepair(Job& job, const RepairKey& key, Repair& repair);
  void OnRepaired(Job& job, const PendingPrepare& pending, const Prepared& prepared);
  void CancelRepairsOf(NodeIndex node);

  // rehome.cc
  void RehomeLost(Job& job);
  NodeIndex ChooseHome(const Job& job, Incarnation incarnation, uint32_t number) const;
  uint64_t RehomedBytes(NodeIndex node) const;

  // lifecycle.cc: running, ended, finished, released
  void OnRanks(NodeIndex node, const std::vector<LocalRank>& ranks);
  void OnTierWanted(const TierWanted& wanted);
  bool HasTrainers(const Job& job) const;
  void AdvanceLife(Job& job);
  void SetPhase(Job& job, JobPhase phase);
  void Release(Job& job);
  bool MayRelease(const Job& job) const;
  /// Returns the newest committed version if it is not at every tier and no newer one follows, else
  /// nullptr.
  VersionState* VersionToFlush(Job& job);
  bool IsQuiet(const Job& job, VersionId newest) const;
  static bool LacksPeerTier(const Job& job, const VersionState& version);
  void PlanFlush(Job& job, std::map<RepairKey, Repair>& missing);
  std::string WhyNotDurable(const Job& job) const;

  // forget.cc
  void Forget(Job& job, std::vector<std::string>* away);
  bool RejectForgotten(NodeIndex node, const StoredReplica& report);
  void RecordForgottenReplicas(NodeIndex node, const std::vector<StoredReplica>& replicas);
  void OnForgottenRemoved(NodeIndex node, const RemovedReplica& removed);
  void StoreForgotten(const std::string& name);
  void SendForgotten();

  // queries.cc
  JobStatus StatusOf(const Job& job) const;

  // node_loss.cc
  NodeLossImpact ImpactOn(const Job& job, const std::set<NodeIndex>& lost) const;

  // retention.cc
  void Retain(Job& job);
  void RetainDisk(Job& job, const std::set<VersionId>& keep);
  void RetainMemory(Job& job, const std::set<VersionId>& keep);
  std::set<VersionId> ProtectedVersions(const Job& job) const;
  void Tombstone(Job& job, VersionState& version);
  void EraseRecord(Job& job, VersionState& version);
  void EraseRemoved(Job& job);
  void PruneAborted(Job& job);

  StateOptions options_;
  std::vector<Node> nodes_;
  std::map<std::string, NodeIndex> node_names_;
  std::map<std::string, Job> jobs_;
  std::map<std::string, ForgottenJob> forgotten_;
  std::set<std::string> active_runs_;
  /// Nodes that must remove replicas of a forgotten job, with the last forgotten incarnation. Sent
  /// after the event.
  std::map<std::pair<NodeIndex, std::string>, Incarnation> forget_due_;
  std::map<std::string, RefusedNode> refused_;           // by node; bounded
  std::map<uint64_t, PendingPrepare> pending_prepares_;  // by request
  uint64_t next_prepare_ = 0;
  Clock::TimePoint no_loss_until_;  // no node is declared lost before
  Instant at_;
  std::vector<Effect> effects_;
};

}  // namespace holdfast::coord
