#include "coordinator/state/restore.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "coordinator/state/invariants.h"
#include "coordinator/state/job_states.h"
#include "coordinator/state/parity_plan.h"
#include "coordinator/state/prepares.h"
#include "coordinator/state/reshard.h"
#include "coordinator/state/restore_plan.h"
#include "coordinator/state/restore_texts.h"
#include "coordinator/state/rollback.h"
#include "coordinator/state/survivability.h"
#include "coordinator/state/tensor_replicas.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
constexpr uint32_t kAttemptsMax = 3;
// A decode also fails if a member is lost but still counts as attached. All attempts together last
// longer than it takes to declare such a member lost. A shared file system may be mounted late.
constexpr uint32_t kDecodeAttemptsMax = 50;
// A decode with a wrong result counts as this many attempts. It does not use up all attempts, since
// the network may have corrupted the bytes.
constexpr uint32_t kDecodeFailureCost = 10;
constexpr auto kRetryPause = std::chrono::milliseconds(200);
// An attempt that fails after this time has waited for a timeout of the network. A node that runs
// refuses at once.
constexpr auto kTimeoutMin = std::chrono::seconds(2);

/// Whether a restore request is a rollback: of one rank to a named version, or of all ranks to the
/// newest. It is one if the running incarnation has committed versions, even if it restored nothing
/// at its start. Before the first commit, the request may come from a rank that starts late.
bool IsRollback(const Job& job, const RestoreRequested& event) {
  const bool own = std::any_of(job.versions.begin(), job.versions.end(), [&](const auto& entry) {
    return entry.first.incarnation == job.incarnation && entry.second.tiers != 0;
  });
  const LineageRecord& lineage = job.lineage();
  return own && (lineage.decision != Decision::kVersion || event.wanted != lineage.restored);
}

bool AnyCommitted(const Job& job) {
  return std::any_of(job.versions.begin(), job.versions.end(),
                     [](const auto& entry) { return entry.second.tiers != 0; });
}

/// Returns the nearest source that has attempts left, or nothing. In order of distance: memory of
/// the rank's node, memory of another node, decode from memory, disk of the rank's node, disk of
/// another node, decode from disk, shared tiers. Sources with fewer failures come first; one on a
/// node that could not be reached counts as having failed once.
std::optional<Replica> PickSource(const ReadContext& context, const Job& job,
                                  const RestoreTask& task, const VersionState& version, Rank rank) {
  constexpr uint32_t kDistanceShared = 6;
  constexpr uint32_t kSources = kDistanceShared + 1;
  const NodeIndex target = job.rank_nodes[rank.value];
  std::optional<Replica> best;
  uint32_t best_cost = 0;
  auto consider = [&](const Replica& replica, uint32_t distance) {
    uint32_t attempts = 0;
    for (const RestoreTask::Tried& tried : task.tried) {
      if (tried.replica == replica) attempts = tried.attempts;
    }
    const bool unreached = job.plan.unreached.contains({target, replica.node});
    const uint32_t cost = std::max(attempts, unreached ? 1U : 0U) * kSources + distance;
    const uint32_t most = replica.node == kNoNode ? kDecodeAttemptsMax : kAttemptsMax;
    if (attempts >= most || (best && cost >= best_cost)) return;
    best = replica;
    best_cost = cost;
  };
  for (const Replica& replica : version.ranks[rank.value].replicas) {
    if (IsShared(replica.tier)) {
      const uint32_t reached = context.cluster.nodes[target].shared_tiers;
      if ((reached & TierBit(replica.tier)) != 0) consider(replica, kDistanceShared);
    } else {
      consider(replica, (replica.tier == Tier::kMemory ? 0 : 3) + (replica.node == target ? 0 : 1));
    }
  }
  if ((!best || best_cost > 2) && CanDecode(job, version, rank, kAnyTier | kIncludeDamaged)) {
    consider(kDecode, CanDecode(job, version, rank, TierBit(Tier::kMemory)) ? 2 : 5);
  }
  return best;
}

/// Sends the directive to prepare the rank's shard if it is due. Returns true if no source has
/// attempts left.
bool RunRestoreTask(Context& context, Job& job, Rank rank) {
  RestoreTask& task = job.plan.tasks[rank.value];
  const NodeIndex target = job.rank_nodes[rank.value];
  if (task.phase != RestoreTask::Phase::kIdle || context.at.now < task.retry_at) return false;
  if (target == kNoNode || !context.cluster.nodes[target].attached) return false;
  const VersionState& version = job.versions.at(*job.plan.candidate);
  if (!IsAvailable(job, version, rank, kAnyTier | kIncludeDamaged)) return false;
  std::optional<Replica> source = PickSource(context, job, task, version, rank);
  if (!source) return true;
  task.phase = RestoreTask::Phase::kPreparing;
  task.begun_at = context.at.now;
  task.target = target;
  task.source = *source;
  task.request = AddPrepare(context, {job.name, version.id, rank, *source, target});
  job.plan.involved[target].push_back(rank);
  if (source->node != kNoNode && source->node != target) {
    job.plan.involved[source->node].push_back(rank);
  }
  PrepareShard directive;
  directive.request = task.request;
  directive.identity.job = job.name;
  directive.identity.version = version.id;
  directive.identity.rank = rank;
  directive.identity.world = job.lineage().world;
  directive.tier = source->tier;
  if (source->tier == Tier::kPeer) {
    const GroupIndex& groups = job.group_indexes.at(version.id.incarnation);
    const uint32_t group = groups.members[groups.by_rank[rank.value]].group;
    directive.group = GroupOf(context, job, version.id.incarnation, group, &version);
  } else if (source->node != kNoNode) {
    directive.source_node = context.cluster.nodes[source->node].name;
    directive.source_peer_address = context.cluster.nodes[source->node].peer_address;
  }
  directive.digest = version.ranks[rank.value].digest;
  // Peers refuse a node that does not have the job state of this incarnation yet.
  SendJobStates(context, job);
  SendDirective(context, target, std::move(directive));
  return false;
}

void CountFailure(RestoreTask& task, const Replica& replica, uint32_t attempts) {
  auto tried = std::find_if(task.tried.begin(), task.tried.end(),
                            [&](const RestoreTask::Tried& t) { return t.replica == replica; });
  if (tried == task.tried.end()) tried = task.tried.insert(task.tried.end(), {replica, 0});
  tried->attempts += attempts;
}

/// Returns whether the task's attempt, which failed with `code`, waited for another node until a
/// timeout.
bool TimedOut(const Context& context, const RestoreTask& task, ErrorCode code) {
  return (code == ErrorCode::kUnavailable || code == ErrorCode::kDeadlineExceeded) &&
         task.source.node != kNoNode && task.source.node != task.target &&
         context.at.now - task.begun_at >= kTimeoutMin;
}

void DecideRestore(Context& context, Job& job) {
  LineageRecord& lineage = job.lineage();
  CheckDecision(context, job);
  lineage.decision = Decision::kVersion;
  lineage.restored = *job.plan.candidate;
  context.effects.emplace_back(PutLineage{lineage, LineageChange::kDecided});
  const VersionState& version = job.versions.at(lineage.restored);
  if (!version.disputes.empty()) ReportDisputedRestore(context, job, version);
  for (const auto& [rank, waiter] : std::exchange(job.plan.waiters, {})) {
    const Tier tier = job.plan.tasks[rank.value].source.tier;
    context.effects.emplace_back(
        Reply{waiter.request, {}, job.incarnation, lineage.restored, tier, version.world});
  }
  for (const RestoreWaiter& waiter : std::exchange(job.plan.reshards, {})) {
    context.effects.emplace_back(Reply{waiter.request,
                                       {},
                                       job.incarnation,
                                       lineage.restored,
                                       ReshardTier(version),
                                       version.world});
  }
  job.plan.wanted.reset();
  job.job_state_changed = true;
  job.retention_due = true;
}

void DecideFresh(Context& context, Job& job) {
  LineageRecord& lineage = job.lineage();
  HOLDFAST_INVARIANT(*context.options.invariants, lineage.decision == Decision::kNone,
                     Kv("job", job.name), Kv("incarnation", job.incarnation.value));
  lineage.decision = Decision::kFresh;
  context.effects.emplace_back(PutLineage{lineage, LineageChange::kDecided});
  job.plan.open = false;
}

/// Refuses the waiting ranks, and reports to the supervisor that their nodes are not at fault.
void RefuseRestore(Context& context, Job& job, const Status& why, bool include_reshards) {
  context.effects.emplace_back(RestoreRefused{job.name, job.incarnation, why});
  RefuseWaiters(context, job, why, include_reshards);
}

/// Answers, refuses or prepares a rank that requests its shard after the decision. Returns false if
/// its node prepares the shard.
bool AdvanceRank(Context& context, Job& job, const VersionState& version, Rank rank) {
  RestorePlan& plan = job.plan;
  const bool stuck = RunRestoreTask(context, job, rank);
  RestoreTask& task = plan.tasks[rank.value];
  const auto [first, last] = plan.waiters.equal_range(rank);
  if (task.phase == RestoreTask::Phase::kPreparing) return false;
  if (task.phase == RestoreTask::Phase::kReady) {
    for (auto it = first; it != last; ++it) {
      context.effects.emplace_back(Reply{
          it->second.request, {}, job.incarnation, version.id, task.source.tier, version.world});
    }
  } else if ((stuck || !IsAvailable(job, version, rank, kAnyTier | kIncludeDamaged)) &&
             BarrierOpen(context, job)) {
    task.tried.clear();
    const Status why = FailedPreconditionError(MissingText(context, job, version));
    context.effects.emplace_back(RestoreRefused{job.name, job.incarnation, why});
    for (auto it = first; it != last; ++it) Answer(context, it->second.request, why);
  } else {
    return true;  // until a source or the rank's node is there
  }
  plan.waiters.erase(first, last);
  return false;
}

/// Answers ranks after the decision: those that request a restore late, or again from a new agent,
/// get the same version.
void AdvanceDecided(Context& context, Job& job) {
  RestorePlan& plan = job.plan;
  if (!plan.is_awaited()) return;
  const VersionId restored = job.lineage().restored;
  auto found = job.versions.find(restored);
  if (found == job.versions.end() || found->second.phase != Phase::kCommitted) {
    return RefuseRestore(context, job,
                         FailedPreconditionError(fmt::format(
                             "incarnation {} of job '{}' restored {}, which newer versions have "
                             "replaced; start the job with another run ID",
                             job.incarnation.value, job.name, ToString(restored))),
                         /*include_reshards=*/true);
  }
  const VersionState& version = found->second;
  // A version of another world does not have one shard for each rank: only reshards can read it.
  if (version.world != job.lineage().world) {
    RefuseWaiters(context, job, WorldMismatch(job, version), /*include_reshards=*/false);
  } else if (plan.candidate != restored) {
    SwitchCandidate(job, restored);
  }
  // All get the same answer.
  while (!plan.reshards.empty() && AnswerReshard(context, job, version, plan.reshards.back())) {
    plan.reshards.pop_back();
  }
  for (const Rank rank : std::exchange(plan.due, {})) {
    if (plan.waiters.contains(rank) && AdvanceRank(context, job, version, rank)) {
      plan.due.insert(rank);
    }
  }
}

std::optional<VersionId> ChooseCandidate(const Job& job) {
  const RestorePlan& plan = job.plan;
  // For reshards, damaged replicas do not count: no preparation shows whether a decode works.
  const auto restorable = plan.reshards_only() ? IsRestorable : MayBeRestorable;
  if (plan.wanted) {
    auto found = job.versions.find(*plan.wanted);
    bool good = found != job.versions.end() && restorable(job, found->second) &&
                plan.unusable.count(*plan.wanted) == 0;
    return good ? plan.wanted : std::nullopt;
  }
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (restorable(job, it->second) && plan.unusable.count(it->first) == 0) return it->first;
  }
  return std::nullopt;
}

/// Takes one step towards the decision. Returns true if a version was found unusable; the caller
/// must call it again then.
bool AdvanceCandidate(Context& context, Job& job) {
  RestorePlan& plan = job.plan;
  const bool requested = plan.is_awaited();
  if (!requested && job.newest_seen.value != 0) {
    // The job already trains, and no rank has requested a restore: prepare nothing.
    if (plan.candidate) SwitchCandidate(job, std::nullopt);
    return false;
  }
  // Reads all nodes of the job, and is needed for few of the events, such as joins, that come here.
  auto barrier_open = [&, known = std::optional<bool>()]() mutable {
    if (!known) known = BarrierOpen(context, job);
    return *known;
  };
  const std::optional<VersionId> best = ChooseCandidate(job);
  if (best != plan.candidate) {
    const bool named = plan.wanted && plan.wanted == best;
    // Switch to a newer version at once, but to an older one only when it is certain that the newer
    // one cannot be restored.
    if (named || best > plan.candidate || barrier_open()) SwitchCandidate(job, best);
  }
  const auto may_refuse = [&] {
    const bool long_enough = job.ranks_joined == job.lineage().world ||
                             context.at.now - plan.waiting_since >= context.options.node_lease;
    return requested && long_enough && barrier_open();
  };
  const VersionState* candidate = job.FindVersion(plan.candidate);
  if (candidate == nullptr) {
    if (!may_refuse()) return false;
    RefuseRestore(context, job,
                  plan.wanted ? WhyNotRestorable(context, job, *plan.wanted)
                              : WhyNothingRestorable(context, job),
                  /*include_reshards=*/true);
    return false;
  }
  const bool other_world = candidate->world != job.lineage().world;
  if (other_world && !plan.waiters.empty() && may_refuse()) {
    RefuseRestore(context, job, WorldMismatch(job, *candidate), /*include_reshards=*/false);
  }
  const bool reshards_only = plan.reshards_only();
  // Reshards need no prepared shards.
  for (auto it = plan.due.begin(); it != plan.due.end() && !reshards_only && !other_world;) {
    const Rank rank = *it;
    const bool stuck = RunRestoreTask(context, job, rank);
    const bool idle = plan.tasks[rank.value].phase == RestoreTask::Phase::kIdle;
    it = idle ? std::next(it) : plan.due.erase(it);
    if (!stuck) continue;
    if (!barrier_open()) continue;  // a node that has not attached yet may have the shard
    plan.unusable[candidate->id] =
        fmt::format("rank {} could not be prepared from any replica", rank.value);
    return true;
  }
  const bool as_wanted = !plan.wanted || plan.wanted == plan.candidate;
  const bool ready = reshards_only || (!other_world && plan.ready == plan.tasks.size());
  if (plan.is_awaited() && as_wanted && ready && barrier_open()) DecideRestore(context, job);
  return false;
}

/// Returns an error unless the request is of a rank of the running incarnation, on an attached
/// node.
Status CheckRequest(Context& context, const Job& job, const RestoreRequested& event) {
  if (event.incarnation != job.incarnation) {
    std::string text =
        fmt::format("the restore request is of incarnation {} of job '{}', incarnation {} runs",
                    event.incarnation.value, job.name, job.incarnation.value);
    return event.incarnation < job.incarnation ? FencedError(text) : FailedPreconditionError(text);
  }
  if (event.rank.value >= job.lineage().world) {
    return InvalidArgumentError(
        fmt::format("rank {} in a world of {}", event.rank.value, job.lineage().world));
  }
  Node* node = FindNode(context, event.node);
  if (node == nullptr || !node->attached) {
    return UnavailableError(fmt::format("node {} is not attached yet", event.node));
  }
  return Status::Ok();
}
}  // namespace

void OnRestoreRequested(Context& context, const RestoreRequested& event) {
  auto refuse = [&](Status why) { Answer(context, event.request, std::move(why)); };
  auto found = context.cluster.jobs.find(event.job);
  if (found == context.cluster.jobs.end()) {
    return refuse(FailedPreconditionError(fmt::format("job '{}' never started", event.job)));
  }
  Job& job = found->second;
  if (Status why = CheckRequest(context, job, event); !why.ok()) return refuse(std::move(why));
  const LineageRecord& lineage = job.lineage();
  if (IsRollback(job, event)) {
    job.plan.RollBack({event.request, event.rank, context.at.now, event.reshard, event.wanted});
    job.plan.open = true;
    return PlaceRank(job, event.rank, context.cluster.node_names.at(event.node));
  }
  // If nothing was ever committed, the first request decides a fresh start.
  if (lineage.decision == Decision::kFresh ||
      (lineage.decision == Decision::kNone && !AnyCommitted(job))) {
    if (event.wanted) return refuse(WhyNotRestorable(context, job, *event.wanted));
    if (lineage.decision == Decision::kNone) DecideFresh(context, job);
    return refuse(
        NotFoundError(fmt::format("job '{}' has no committed version: a fresh start", job.name)));
  }
  RestorePlan& plan = job.plan;
  if (lineage.decision == Decision::kVersion) {
    if (event.wanted && event.wanted != lineage.restored) {
      return refuse(FailedPreconditionError(fmt::format(
          "incarnation {} of job '{}' restores {}, not {}; start the job with another run ID to "
          "restore another version",
          job.incarnation.value, job.name, ToString(lineage.restored), ToString(*event.wanted))));
    }
  } else if (!plan.is_awaited()) {
    // All ranks restore the version that the first waiter requests.
    plan.wanted = event.wanted;
    plan.unusable.clear();
  } else if (plan.wanted != event.wanted) {
    auto name = [](const std::optional<VersionId>& version) {
      return version ? ToString(*version) : std::string("the newest");
    };
    return refuse(InvalidArgumentError(fmt::format(
        "rank {} requests {}, other ranks of this incarnation request {}; all must request the "
        "same version",
        event.rank.value, name(event.wanted), name(plan.wanted))));
  }
  plan.open = true;
  plan.Wait({event.request, event.rank, context.at.now, event.reshard});
  PlaceRank(job, event.rank, context.cluster.node_names.at(event.node));
}

void OnRestoreAbandoned(Context& context, const RestoreAbandoned& event) {
  const auto found = context.cluster.jobs.find(event.job);
  if (found == context.cluster.jobs.end()) return;
  RestorePlan& plan = found->second.plan;
  const auto abandoned = [&](const RestoreWaiter& waiter) {
    return waiter.request == event.request;
  };
  const auto [first, last] = plan.waiters.equal_range(event.rank);
  const auto own =
      std::find_if(first, last, [&](const auto& entry) { return abandoned(entry.second); });
  if (own != last) {
    plan.waiters.erase(own);
  } else {
    std::erase_if(plan.reshards, abandoned);
    std::erase_if(plan.rollbacks, abandoned);
    std::erase_if(plan.rollbacks_to_newest, abandoned);
  }
  if (!plan.is_awaited()) plan.wanted.reset();
  found->second.changed = true;
}

void AdvanceRestore(Context& context, Job& job) {
  if (!job.plan.open) return;
  AdvanceRollback(context, job);
  if (job.lineage().decision == Decision::kVersion) return AdvanceDecided(context, job);
  while (AdvanceCandidate(context, job)) {
  }
}

void OnShardPrepared(Context& context, Job& job, const PendingPrepare& pending,
                     const Prepared& prepared) {
  if (pending.rank.value >= job.plan.tasks.size()) return;
  RestoreTask& task = job.plan.tasks[pending.rank.value];
  if (task.request != prepared.request) return;
  task.request.reset();
  job.plan.due.insert(pending.rank);
  if (prepared.outcome.ok()) {
    task.phase = RestoreTask::Phase::kReady;
    ++job.plan.ready;
    return;
  }
  task.phase = RestoreTask::Phase::kIdle;
  const ErrorCode code = prepared.outcome.code();
  const bool decoded = task.source == kDecode;
  if (IsSourceLost(code) && !decoded) return;  // RecordSourceFailure() has removed it
  const bool wrong_result = decoded && code == ErrorCode::kDataLoss;
  job.plan.failed.insert(pending.rank);
  const VersionState* version = job.FindVersion(pending.version);
  if (version != nullptr && TimedOut(context, task, code)) {
    // Its other replicas would be waited for as long, and so would those of older versions.
    job.plan.unreached.insert({task.target, task.source.node});
    for (const Replica& replica : version->ranks[pending.rank.value].replicas) {
      if (replica.node == task.source.node) CountFailure(task, replica, 1);
    }
  } else {
    CountFailure(task, task.source, wrong_result ? kDecodeFailureCost : 1);
  }
  task.retry_at = context.at.now + (wrong_result ? Clock::Duration::zero() : kRetryPause);
}

}  // namespace holdfast::coord
