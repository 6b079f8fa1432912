#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/state/events.h"
#include "coordinator/state/groups.h"
#include "coordinator/state/job.h"
#include "coordinator/state/records.h"
#include "coordinator/state/view.h"

namespace holdfast::coord {

struct PeerOptions {
  bool enabled = true;
  GroupOptions groups;
  std::string domain_label = "rack";  // nodes with the same value share their fate
};

struct StateOptions {
  Epoch epoch;
  LifeId life;  // of the store; 0 (tests): every copy is of this life
  std::chrono::nanoseconds node_lease = std::chrono::seconds(3);
  /// How long an ended stream may take to come back before the node counts as lost.
  std::chrono::nanoseconds detach_grace = std::chrono::milliseconds(500);
  uint32_t keep_last = 3;   // newest versions on disk, at least 1
  uint64_t keep_every = 0;  // and every K-th step; 0: none
  PeerOptions peers;
  /// What is missing somewhere may be on its way there: it is ordered after so long.
  std::chrono::nanoseconds repair_grace = std::chrono::seconds(2);
  /// A node that is away for so long is not waited for: another one takes its place and gets its
  /// shards of the versions that lie on disk.
  std::chrono::nanoseconds rehome_after = std::chrono::minutes(10);
  /// A version that nothing newer has followed for so long is brought to every tier.
  std::chrono::nanoseconds settle_after = std::chrono::seconds(1);
  /// A job without trainers for so long has ended.
  std::chrono::nanoseconds end_grace = std::chrono::seconds(2);
  /// What a finished job has in memory is given back so long after its end, that of one whose
  /// trainers left without a goodbye after `release_dead_after`.
  std::chrono::nanoseconds release_after = std::chrono::seconds(5);
  std::chrono::nanoseconds release_dead_after = std::chrono::hours(1);
  /// A job without trainers is forgotten after so long; 0: never.
  std::chrono::nanoseconds forget_after{};
  /// A process that joins with the run id of ranks that still run waits so long for their end.
  std::chrono::nanoseconds rejoin_wait = std::chrono::seconds(4);
};

/// Everything the coordinator knows, and the rules by which it changes. Events go in, effects come
/// out; no threads, no I/O, no time of its own. The caller stores the Put and Erase effects of an
/// event, in order, before it acts on any other effect; if that storing fails, it throws the State
/// away and loads a new one from the store. Thread-compatible.
class State {
 public:
  /// `records` as read from the store; DataLoss when they contradict each other.
  static Result<State> Load(const StateOptions& options, const Records& records, Instant at);

  std::vector<Effect> Apply(const Event& event, Instant at);

  // ---- what operators ask; see view.h ----
  std::vector<NodeView> Nodes() const;
  /// All jobs, or the named one (NotFound).
  Result<std::vector<JobView>> Jobs(const std::string& job) const;
  /// Newest first.
  Result<std::vector<VersionView>> Versions(const std::string& job) const;
  /// From where each shard of `version` (incarnation 0: the newest restorable) is read now; with
  /// `tier`, only from there.
  Result<RestoreView> PlanRestore(const std::string& job, VersionId version,
                                  std::optional<Tier> tier) const;
  /// Every copy of every shard of a committed version, and the groups that can decode those that
  /// have none.
  /// `as_is`: also of a version that cannot be made whole.
  Result<RestoreView> PlanView(const std::string& job, VersionId version, bool as_is = false) const;
  /// Of one job (NotFound), or of all: would it keep its newest version if `nodes` (NotFound) went
  /// with all that they hold?
  Result<std::vector<WithoutView>> Without(const std::string& job,
                                           const std::vector<std::string>& nodes) const;
  /// Agents that are turned away.
  std::vector<RefusedView> Refused() const;
  LifeId life() const { return options_.life; }

 private:
  explicit State(const StateOptions& options) : options_(options) {}

  /// A PrepareOrder without an answer yet. It outlives the leg that gave it: that its source is
  /// damaged counts even if nobody waits any more.
  struct Ordered {
    std::string job;
    VersionId version;
    Rank rank;
    Copy source;
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
  void On(const RestoreWanted& event);
  void On(const RestoreGivenUp& event);
  void On(const PinSet& event);
  void On(const RetentionSet& event);
  void On(const JobForgotten& event);
  void On(const RunSeen& event);
  void On(const AdoptWanted& event);
  void On(const Tick& event);
  void Settle();
  void Settle(Job& job);
  NodeIndex Intern(const std::string& name);
  Node* Find(const std::string& name);
  void Lose(NodeIndex node, std::string_view why, bool silent);
  void DropCopiesOf(NodeIndex node);
  void Say(NodeIndex node, Directive directive);
  void Answer(RequestId request, Status outcome);
  void Find(const std::string& job, NodeIndex node, Status what);
  JobWord WordOn(const Job& job) const;
  void SendWords(Job& job);
  JobRecord RecordOf(const Job& job) const;

  // lives.cc: copies of other lives of the store
  static bool OfOtherLives(const Job& job, Incarnation a, Incarnation b);
  std::vector<Holding> Claimed(std::vector<Holding> holdings, LifeId life_seen) const;
  bool IsOurs(const Holding& holding) const;
  void KeepAside(NodeIndex node, const Holding& holding);
  bool KeepsAside(const std::string& job) const;
  void ForgetAside(NodeIndex node, const Gone& gone);
  void ShowRefused(const NodeAttached& event, const Status& why);
  std::vector<OtherLifeView> OtherLivesOf(const Node& node) const;
  struct Adoption;
  std::vector<Adoption> Adoptable(const AdoptWanted& event) const;
  std::string WhyNotAdopted(const Adoption& adoption) const;
  void Adopt(const Adoption& adoption);

  // join.cc: incarnations
  Status CheckJoin(const RankJoined& event, NodeIndex& node);
  Status CheckRun(const Job& job, const RankJoined& event) const;
  Incarnation HighestReported(const std::string& job) const;
  bool IsNewStart(const Job& job, const RankJoined& event) const;
  std::string StillRunning(const Job& job, const RankJoined& event) const;
  void AdmitRank(Job& job, const RankJoined& event, NodeIndex node);
  void AdvanceJoins(Job& job);
  void OpenIncarnation(Job& job, const RankJoined& event);
  void Place(Job& job, Rank rank, NodeIndex node);

  // holdings.cc: facts, commit, abort
  void AddHoldings(NodeIndex node, std::vector<Holding> holdings, bool inventory);
  void AddHolding(NodeIndex node, const Holding& holding, bool inventory);
  void AddDamaged(NodeIndex node, const Holding& holding, Job& job, VersionState& version);
  DamagedCopy& RecordDamage(Job& job, VersionState& version, Rank rank, Copy copy,
                            const std::string& what);
  void CompareReplicas(Job& job, VersionState& version);
  void FindDisputed(const Job& job, const VersionState& version);
  void AddRank(NodeIndex node, const Holding& holding, bool inventory, Job& job);
  bool AdmitParity(NodeIndex node, const Holding& holding, Job& job);
  bool SitsThere(NodeIndex node, const ShardKey& shard, Job& job);
  VersionState* Admit(NodeIndex node, const Holding& holding, Job& job);
  VersionState* AdmitNew(const Holding& holding, Job& job);
  void AbortOvertaken(Job& job, const Holding& newer);
  void TryCommit(Job& job, VersionState& version, Tier tier);
  void Abort(Job& job, VersionState& version, bool store);
  void OnMissing(NodeIndex node, const Missing& missing);
  void FailTier(Job& job, VersionState& version, Tier tier);
  void OnGone(NodeIndex node, const Gone& gone);
  void Store(const Job& job, VersionState& version, uint32_t committed_tier_bit);
  VersionState& Create(Job& job, VersionId id, uint32_t world, Phase phase);
  static bool IsDead(const Job& job, VersionId version);
  static bool IsAbandoned(const Job& job, VersionId version);
  static bool IsRestorable(const Job& job, const VersionState& version);
  /// The same, hoping for what damaged copies have left.
  static bool MayBeRestorable(const Job& job, const VersionState& version);
  static VersionId NewestCommitted(const Job& job, Tier tier);
  static VersionId NewestRestorable(const Job& job);
  void AdvanceTargets(Job& job);
  static bool LeadsTo(const Job& job, const TierTarget& target, VersionId version);

  // peers.cc: parity groups
  std::string WhyNoPeers(const Job& job) const;
  void PlanPeers(Job& job);
  void SeatPeers(Job& job, Incarnation incarnation);
  void ForgetPlans(Job& job);
  PeerGroup GroupOf(const Job& job, Incarnation incarnation, uint32_t group,
                    const VersionState* version) const;
  void TellGroupsOf(NodeIndex node);
  static VersionId PeerFloor(const Job& job);

  // restore.cc: the plan
  bool GateOpen(const Job& job) const;
  void AdvancePlan(Job& job);
  void AdvanceDecided(Job& job);
  bool AdvanceCandidate(Job& job);
  VersionId Choose(const Job& job) const;
  void SwitchTo(Job& job, VersionId candidate);
  bool RunLeg(Job& job, Rank rank);
  static std::optional<Copy> PickSource(const Job& job, const RestoreLeg& leg,
                                        const VersionState& version, Rank rank);
  static void ResetLeg(Job& job, RestoreLeg& leg);
  void Decide(Job& job);
  void DecideFresh(Job& job);
  void RefuseAsks(Job& job, const Status& why, bool views_too = true);
  Status WhyNothing(const Job& job) const;
  Status WhyNotWanted(const Job& job, VersionId wanted) const;
  std::string MissingText(const Job& job, const VersionState& version) const;
  std::string LostGroupsText(const Job& job, const VersionState& version) const;
  std::string LackedText(const Job& job, const VersionState& version, uint32_t number) const;
  std::string AbsentNodes(const Job& job) const;
  void OnPrepared(NodeIndex node, const Prepared& prepared);
  void OnSourceFailed(Job& job, const Ordered& order, const Status& why);
  void LegsOfLostNode(Job& job, NodeIndex node, bool keep_ready);

  // restore_view.cc
  bool AnswerView(Job& job, const VersionState& version, const RestoreAsk& ask);

  // rollback.cc
  void AdvanceRollback(Job& job);
  bool AnswerRollback(Job& job, const RestoreAsk& ask, VersionId wanted);
  static const Copy* CopyBeside(const Job& job, const VersionState& version, Rank rank);
  static Tier TierOfView(const VersionState& version);
  static Status OtherWorld(const Job& job, const VersionState& version);

  // repair.cc
  void AdvanceRepairs(Job& job);
  void FindMissing(const Job& job, const VersionState& version,
                   std::map<RepairKey, Repair>& missing) const;
  bool IsRestoring(const Job& job) const;
  void CountLacking(Job& job);
  std::vector<UnderProtectedView> UnderProtectedOf(const Job& job) const;
  void OrderRepair(Job& job, const RepairKey& key, Repair& repair);
  void OnRepaired(Job& job, const Ordered& order, const Prepared& prepared);
  void ForgetRepairsOf(NodeIndex node);

  // rehome.cc
  void RehomeLost(Job& job);
  NodeIndex ChooseHome(const Job& job, Incarnation incarnation, uint32_t number) const;
  uint64_t BytesToCome(NodeIndex node) const;
  // lifecycle.cc: running, ended, finished, released
  void HearRanks(NodeIndex node, const std::vector<LocalRank>& ranks);
  void HearWanted(const TierWanted& wanted);
  bool HasTrainers(const Job& job) const;
  void AdvanceLife(Job& job);
  void SetPhase(Job& job, JobPhase phase);
  void Release(Job& job);
  bool MayRelease(const Job& job) const;
  /// The newest committed version, when nothing newer comes and it is not at every tier.
  VersionState* Unsettled(Job& job);
  bool IsQuiet(const Job& job, VersionId newest) const;
  static bool LacksPeer(const Job& job, const VersionState& version);
  void FindUnsettled(Job& job, std::map<RepairKey, Repair>& missing);
  std::string WhyNotDurable(const Job& job) const;

  // forget.cc
  void Forget(Job& job, std::vector<std::string>* away);
  bool IsForgotten(NodeIndex node, const Holding& holding);
  void RecallForgotten(NodeIndex node, const std::vector<Holding>& holdings);
  void OnForgottenGone(NodeIndex node, const Gone& gone);
  void StoreForgotten(const std::string& name);
  void SayForgotten();

  // view.cc
  JobView ViewOf(const Job& job) const;

  // without.cc
  WithoutView ViewWithout(const Job& job, const std::set<NodeIndex>& gone) const;

  // retention.cc
  void Retain(Job& job);
  void RetainDisk(Job& job, const std::set<VersionId>& guarded);
  void RetainMemory(Job& job, const std::set<VersionId>& guarded);
  std::set<VersionId> Guarded(const Job& job) const;
  void Tombstone(Job& job, VersionState& version);
  void EraseRecord(Job& job, VersionState& version);
  void EraseGone(Job& job);
  void PruneAborted(Job& job);

  StateOptions options_;
  std::vector<Node> nodes_;
  std::map<std::string, NodeIndex> node_names_;
  std::map<std::string, Job> jobs_;
  std::map<std::string, ForgottenJob> forgotten_;
  std::set<std::string> active_runs_;
  /// Nodes that are to drop a forgotten job, with what they told last: sent after the event.
  std::map<std::pair<NodeIndex, std::string>, Incarnation> forget_due_;
  std::map<std::string, RefusedView> refused_;  // by node; bounded
  std::map<uint64_t, Ordered> ordered_;         // by request
  uint64_t next_prepare_ = 0;
  Clock::TimePoint patient_until_;  // nobody is found lost before
  Instant at_;
  std::vector<Effect> effects_;
};

}  // namespace holdfast::coord
