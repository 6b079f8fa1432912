#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// Restore: prepared as ranks connect, decided once for all of them.

namespace holdfast::coord {
namespace {
constexpr uint32_t kAttemptsMax = 3;
// A decode also fails if a member is lost and still counts as attached. The attempts last longer
// than it takes to declare such a member lost.
constexpr uint32_t kDecodeAttemptsMax = 50;
// A decode with a wrong result counts as this many attempts. It does not count as all of them,
// since the network may have corrupted the bytes.
constexpr uint32_t kDecodeFailureCost = 10;
constexpr auto kRetryPause = std::chrono::milliseconds(200);
constexpr size_t kNamedMax = 8;  // ranks and nodes named in one message

/// Whether the replica is lost after a failure with this code, so that it is not tried again.
bool IsLost(ErrorCode code) {
  return code == ErrorCode::kDataLoss || code == ErrorCode::kIoError ||
         code == ErrorCode::kNotFound;
}

/// Whether a restore request is a rollback, to a named version or of all ranks to the newest. It is
/// one if the running incarnation has committed versions, also if no rank restored at its start.
/// Before its first commit, the request may come from a rank that is late at the start.
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
}  // namespace

/// The recovery barrier is open when every node that may hold replicas of the job is attached or
/// has been away for a full lease. Only then is it certain which versions can be restored.
bool State::BarrierOpen(const Job& job) const {
  auto resolved = [this](NodeIndex index) {
    const Node& node = nodes_[index];
    return node.attached || at_.now - node.lost_at >= options_.node_lease;
  };
  return std::all_of(job.nodes_now.begin(), job.nodes_now.end(), resolved) &&
         std::all_of(job.nodes_before.begin(), job.nodes_before.end(), resolved);
}

void State::On(const RestoreRequested& event) {
  auto refuse = [&](Status why) { Answer(event.request, std::move(why)); };
  auto found = jobs_.find(event.job);
  if (found == jobs_.end()) {
    return refuse(FailedPreconditionError(fmt::format("job '{}' never started", event.job)));
  }
  Job& job = found->second;
  if (event.incarnation != job.incarnation) {
    std::string text =
        fmt::format("the restore request is of incarnation {} of job '{}', incarnation {} runs",
                    event.incarnation.value, job.name, job.incarnation.value);
    return refuse(event.incarnation < job.incarnation ? FencedError(text)
                                                      : FailedPreconditionError(text));
  }
  if (event.rank.value >= job.lineage().world) {
    return refuse(InvalidArgumentError(
        fmt::format("rank {} in a world of {}", event.rank.value, job.lineage().world)));
  }
  Node* node = FindNode(event.node);
  if (node == nullptr || !node->attached) {
    return refuse(UnavailableError(fmt::format("node {} is not attached yet", event.node)));
  }
  const LineageRecord& lineage = job.lineage();
  bool named = event.wanted.incarnation.value != 0;
  if (IsRollback(job, event)) {
    job.plan.rollbacks.push_back({event.request, event.rank, at_.now, event.reshard, event.wanted});
    job.plan.open = true;
    return Place(job, event.rank, node_names_.at(event.node));
  }
  // If nothing was ever committed, the first request decides a fresh start.
  if (lineage.decision == Decision::kFresh ||
      (lineage.decision == Decision::kNone && !AnyCommitted(job))) {
    if (named) return refuse(WhyNotRestorable(job, event.wanted));
    if (lineage.decision == Decision::kNone) DecideFresh(job);
    return refuse(
        NotFoundError(fmt::format("job '{}' has no committed version: a fresh start", job.name)));
  }
  RestorePlan& plan = job.plan;
  if (lineage.decision == Decision::kVersion) {
    if (named && event.wanted != lineage.restored) {
      return refuse(FailedPreconditionError(fmt::format(
          "incarnation {} of job '{}' restores {}, not {}; start the job with another run ID to "
          "restore another version",
          job.incarnation.value, job.name, ToString(lineage.restored), ToString(event.wanted))));
    }
  } else if (plan.waiters.empty()) {
    // The first waiter chooses the requested version for all ranks.
    plan.wanted = event.wanted;
    plan.unusable.clear();
  } else if (plan.wanted != event.wanted) {
    auto name = [](VersionId version) {
      return version.incarnation.value == 0 ? std::string("the newest") : ToString(version);
    };
    return refuse(InvalidArgumentError(fmt::format(
        "rank {} requests {}, other ranks of this incarnation request {}; all must request the "
        "same version",
        event.rank.value, name(event.wanted), name(plan.wanted))));
  }
  plan.open = true;
  plan.waiters.push_back({event.request, event.rank, at_.now, event.reshard});
  Place(job, event.rank, node_names_.at(event.node));
}

void State::On(const RestoreAbandoned& event) {
  for (auto& [name, job] : jobs_) {
    const auto abandoned = [&](const RestoreWaiter& waiter) {
      return waiter.request == event.request;
    };
    std::vector<RestoreWaiter>& waiters = job.plan.waiters;
    std::erase_if(job.plan.rollbacks, abandoned);
    if (std::erase_if(waiters, abandoned) == 0) continue;
    if (waiters.empty()) job.plan.wanted = {};
    job.changed = true;
  }
}

void State::AdvancePlan(Job& job) {
  if (!job.plan.open) return;
  AdvanceRollback(job);
  if (job.lineage().decision == Decision::kVersion) return AdvanceDecided(job);
  while (AdvanceCandidate(job)) {
  }
}

/// Answers waiters after the decision: ranks that request a restore late, or again from a new
/// agent, get the same version.
void State::AdvanceDecided(Job& job) {
  RestorePlan& plan = job.plan;
  if (plan.waiters.empty()) return;
  const VersionId restored = job.lineage().restored;
  auto found = job.versions.find(restored);
  if (found == job.versions.end() || found->second.phase != Phase::kCommitted) {
    return RefuseWaiters(
        job, FailedPreconditionError(
                 fmt::format("incarnation {} of job '{}' restored {}, which newer versions have "
                             "replaced; start the job with another run ID",
                             job.incarnation.value, job.name, ToString(restored))));
  }
  // A version of another world has no shard of its own for each rank: only reshards can read it.
  if (found->second.world != job.lineage().world) {
    RefuseWaiters(job, WorldMismatch(job, found->second), /*include_reshards=*/false);
  } else if (plan.candidate != restored) {
    SwitchTo(job, restored);
  }
  std::vector<RestoreWaiter> waiting;
  for (const RestoreWaiter& waiter : std::exchange(plan.waiters, {})) {
    if (waiter.reshard) {
      if (!AnswerReshard(job, found->second, waiter)) waiting.push_back(waiter);
      continue;
    }
    bool stuck = RunRestoreTask(job, waiter.rank);
    const RestoreTask& task = plan.tasks[waiter.rank.value];
    if (task.phase == RestoreTask::Phase::kReady) {
      effects_.emplace_back(Reply{
          waiter.request, {}, job.incarnation, restored, task.source.tier, found->second.world});
    } else if (BarrierOpen(job) && (stuck || !IsAvailable(job, found->second, waiter.rank,
                                                          kAnyTier | kIncludeDamaged))) {
      plan.tasks[waiter.rank.value].tried.clear();
      Answer(waiter.request, FailedPreconditionError(MissingText(job, found->second)));
    } else {
      waiting.push_back(waiter);
    }
  }
  plan.waiters = std::move(waiting);
}

/// Takes one step towards the decision. Returns true if a version was found unusable; the caller
/// must call it again then.
bool State::AdvanceCandidate(Job& job) {
  RestorePlan& plan = job.plan;
  const bool requested = !plan.waiters.empty();
  if (!requested && job.newest_seen.value != 0) {
    // The job trains already without a restore request: prepare nothing.
    if (plan.candidate.incarnation.value != 0) SwitchTo(job, {});
    return false;
  }
  const bool barrier_open = BarrierOpen(job);
  const VersionId best = Choose(job);
  if (best != plan.candidate) {
    const bool named = plan.wanted.incarnation.value != 0 && best == plan.wanted;
    // Switch to a newer version at once, but to an older one only when it is certain that the newer
    // one cannot be restored.
    if (named || best > plan.candidate || barrier_open) SwitchTo(job, best);
  }
  const bool may_refuse = requested && barrier_open &&
                          (job.ranks_joined == job.lineage().world ||
                           at_.now - plan.waiters.front().since >= options_.node_lease);
  auto found = job.versions.find(plan.candidate);
  if (found == job.versions.end()) {
    if (!may_refuse) return false;
    const bool named = plan.wanted.incarnation.value != 0;
    RefuseWaiters(job, named ? WhyNotRestorable(job, plan.wanted) : WhyNothingRestorable(job));
    return false;
  }
  const bool other_world = found->second.world != job.lineage().world;
  if (other_world && may_refuse) {
    RefuseWaiters(job, WorldMismatch(job, found->second), /*include_reshards=*/false);
  }
  const bool reshards_only = plan.reshards_only();
  // Reshards need no prepared shards.
  for (uint32_t rank = 0; rank < plan.tasks.size() && !reshards_only && !other_world; ++rank) {
    if (!RunRestoreTask(job, Rank{rank})) continue;
    if (!barrier_open) continue;  // a node that has not attached yet may have the shard
    plan.unusable[plan.candidate] =
        fmt::format("rank {} could not be prepared from any replica", rank);
    return true;
  }
  const bool as_wanted = plan.wanted.incarnation.value == 0 || plan.wanted == plan.candidate;
  const bool ready = reshards_only || (!other_world && plan.ready == plan.tasks.size());
  if (!plan.waiters.empty() && barrier_open && as_wanted && ready) Decide(job);
  return false;
}

VersionId State::Choose(const Job& job) const {
  const RestorePlan& plan = job.plan;
  // For reshards, damaged replicas do not count: no preparation shows whether a decode works.
  const auto restorable = plan.reshards_only() ? IsRestorable : MayBeRestorable;
  if (plan.wanted.incarnation.value != 0) {
    auto found = job.versions.find(plan.wanted);
    bool good = found != job.versions.end() && restorable(job, found->second) &&
                plan.unusable.count(plan.wanted) == 0;
    return good ? plan.wanted : VersionId{};
  }
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (restorable(job, it->second) && plan.unusable.count(it->first) == 0) return it->first;
  }
  return {};
}

void State::SwitchTo(Job& job, VersionId candidate) {
  RestorePlan& plan = job.plan;
  for (RestoreTask& task : plan.tasks) ResetRestoreTask(job, task);
  plan.candidate = candidate;
  plan.ready = 0;
  plan.tasks.assign(candidate.incarnation.value == 0 ? 0 : job.lineage().world, {});
}

void State::ResetRestoreTask(Job& job, RestoreTask& task) {
  if (task.phase == RestoreTask::Phase::kReady) --job.plan.ready;
  task.phase = RestoreTask::Phase::kIdle;
  task.request = 0;
}

/// Returns the nearest source that has attempts left, or nothing. In order of distance: memory of
/// the rank's node, memory of another node, decode from memory, disk of the rank's node, disk of
/// another node, decode from disk. Sources with fewer failures come first.
std::optional<Replica> State::PickSource(const Job& job, const RestoreTask& task,
                                         const VersionState& version, Rank rank) {
  constexpr uint32_t kSources = 6;
  const NodeIndex target = job.rank_nodes[rank.value];
  std::optional<Replica> best;
  uint32_t best_cost = 0;
  auto consider = [&](const Replica& replica, uint32_t distance) {
    uint32_t attempts = 0;
    for (const RestoreTask::Tried& tried : task.tried) {
      if (tried.replica == replica) attempts = tried.attempts;
    }
    const uint32_t cost = attempts * kSources + distance;
    const uint32_t most = replica == kDecode ? kDecodeAttemptsMax : kAttemptsMax;
    if (attempts >= most || (best && cost >= best_cost)) return;
    best = replica;
    best_cost = cost;
  };
  for (const Replica& replica : version.ranks[rank.value].replicas) {
    consider(replica, (replica.tier == Tier::kMemory ? 0 : 3) + (replica.node == target ? 0 : 1));
  }
  if ((!best || best_cost > 2) && CanDecode(job, version, rank, kAnyTier | kIncludeDamaged)) {
    consider(kDecode, CanDecode(job, version, rank, TierBit(Tier::kMemory)) ? 2 : 5);
  }
  return best;
}

/// Sends the directive to prepare the rank's shard if it is due. Returns true if no source has
/// attempts left.
bool State::RunRestoreTask(Job& job, Rank rank) {
  RestoreTask& task = job.plan.tasks[rank.value];
  const NodeIndex target = job.rank_nodes[rank.value];
  if (task.phase != RestoreTask::Phase::kIdle || at_.now < task.retry_at) return false;
  if (target == kNoNode || !nodes_[target].attached) return false;
  const VersionState& version = job.versions.at(job.plan.candidate);
  if (!IsAvailable(job, version, rank, kAnyTier | kIncludeDamaged)) return false;
  std::optional<Replica> source = PickSource(job, task, version, rank);
  if (!source) return true;
  task.phase = RestoreTask::Phase::kPreparing;
  task.request = ++next_prepare_;
  task.target = target;
  task.source = *source;
  pending_prepares_[task.request] = {job.name, job.plan.candidate, rank, *source, target};
  PrepareShard directive;
  directive.request = task.request;
  directive.identity.job = job.name;
  directive.identity.version = job.plan.candidate;
  directive.identity.rank = rank;
  directive.identity.world = job.lineage().world;
  directive.tier = source->tier;
  if (source->tier == Tier::kPeer) {
    const GroupIndex& groups = job.group_indexes.at(version.id.incarnation);
    const uint32_t group = groups.members[groups.by_rank[rank.value]].group;
    directive.group = GroupOf(job, version.id.incarnation, group, &version);
  } else {
    directive.source_node = nodes_[source->node].name;
    directive.source_address = nodes_[source->node].data_address;
  }
  directive.digest = version.ranks[rank.value].digest;
  SendDirective(target, std::move(directive));
  return false;
}

void State::OnPrepared(NodeIndex node, const Prepared& prepared) {
  auto found = pending_prepares_.find(prepared.request);
  if (found == pending_prepares_.end() || found->second.target != node) return;
  const PendingPrepare pending = std::move(found->second);
  pending_prepares_.erase(found);
  Job& job = jobs_.at(pending.job);
  job.changed = true;
  const ErrorCode code = prepared.outcome.code();
  if (!prepared.outcome.ok()) OnSourceFailed(job, pending, prepared.outcome);
  if (pending.repair) return OnRepaired(job, pending, prepared);
  if (pending.rank.value >= job.plan.tasks.size()) return;
  RestoreTask& task = job.plan.tasks[pending.rank.value];
  if (task.request != prepared.request) return;
  task.request = 0;
  if (prepared.outcome.ok()) {
    task.phase = RestoreTask::Phase::kReady;
    ++job.plan.ready;
    return;
  }
  task.phase = RestoreTask::Phase::kIdle;
  const bool decoded = task.source == kDecode;
  if (IsLost(code) && !decoded) return;  // OnSourceFailed() has removed the replica
  auto tried = std::find_if(task.tried.begin(), task.tried.end(),
                            [&](const RestoreTask::Tried& t) { return t.replica == task.source; });
  if (tried == task.tried.end()) tried = task.tried.insert(task.tried.end(), {task.source, 0});
  const bool wrong_result = decoded && code == ErrorCode::kDataLoss;
  tried->attempts += wrong_result ? kDecodeFailureCost : 1;
  task.retry_at = at_.now + (wrong_result ? Clock::Duration::zero() : kRetryPause);
}

/// Handles a source that failed for a restore or a repair. A replica that is damaged or not there
/// no longer counts. A failed decode rules out no replica: the node with a damaged one reports it.
void State::OnSourceFailed(Job& job, const PendingPrepare& pending, const Status& why) {
  const std::string shard = ToString(ShardKey{job.name, pending.version, pending.rank});
  if (pending.repair && !IsLost(why.code())) return;  // the repair is tried again
  if (pending.source == kDecode) {
    return RecordFinding(
        job.name, pending.target,
        Status(why.code(), fmt::format("{} decoded from its group: {}", shard, why.message())));
  }
  const std::string text =
      fmt::format("{} at {} on node {}: {}", shard, ToString(pending.source.tier),
                  nodes_[pending.source.node].name, why.message());
  auto found = job.versions.find(pending.version);
  const bool lost = found != job.versions.end() && IsLost(why.code());
  // The damage is known already.
  if (lost && found->second.Damaged(pending.rank, pending.source) != nullptr) return;
  RecordFinding(job.name, pending.target, Status(why.code(), text));
  if (!lost) return;
  VersionState& version = found->second;
  const bool there = version.RemoveReplica(pending.rank, pending.source);
  if (why.code() == ErrorCode::kNotFound) return;
  version.damaged.push_back({pending.rank, pending.source, /*readable=*/there});
  version.damage_texts.push_back(text);
}

/// Resets restore tasks after `node` was lost or attached again. With `keep_ready` it is the same
/// agent, which still has its prepared shards in memory.
void State::FailRestoreTasksOf(Job& job, NodeIndex node, bool keep_ready) {
  for (RestoreTask& task : job.plan.tasks) {
    const bool ready = task.phase == RestoreTask::Phase::kReady;
    if (task.target == node && !(ready && keep_ready)) ResetRestoreTask(job, task);
    if (task.source.node == node && !ready && !keep_ready) ResetRestoreTask(job, task);
    // Whether a decode works depends on which nodes are attached.
    std::erase_if(task.tried,
                  [](const RestoreTask::Tried& tried) { return tried.replica == kDecode; });
    task.retry_at = std::min(task.retry_at, at_.now);
  }
  job.plan.unusable.clear();
}

void State::Decide(Job& job) {
  LineageRecord& lineage = job.lineage();
  lineage.decision = Decision::kVersion;
  lineage.restored = job.plan.candidate;
  effects_.emplace_back(PutLineage{lineage, LineageChange::kDecided});
  const VersionState& version = job.versions.at(lineage.restored);
  if (!version.disputes.empty()) ReportDisputedRestore(job, version);
  for (const RestoreWaiter& waiter : std::exchange(job.plan.waiters, {})) {
    const Tier tier =
        waiter.reshard ? ReshardTier(version) : job.plan.tasks[waiter.rank.value].source.tier;
    effects_.emplace_back(
        Reply{waiter.request, {}, job.incarnation, lineage.restored, tier, version.world});
  }
  job.plan.wanted = {};
  job.job_state_changed = true;
  job.retention_due = true;
}

void State::DecideFresh(Job& job) {
  LineageRecord& lineage = job.lineage();
  lineage.decision = Decision::kFresh;
  effects_.emplace_back(PutLineage{lineage, LineageChange::kDecided});
  job.plan.open = false;
}

void State::RefuseWaiters(Job& job, const Status& why, bool include_reshards) {
  std::vector<RestoreWaiter> left;
  for (const RestoreWaiter& waiter : std::exchange(job.plan.waiters, {})) {
    if (include_reshards || !waiter.reshard) {
      Answer(waiter.request, why);
    } else {
      left.push_back(waiter);
    }
  }
  job.plan.waiters = std::move(left);
  if (job.plan.waiters.empty()) job.plan.wanted = {};
}

std::string State::AbsentNodes(const Job& job) const {
  std::set<NodeIndex> nodes = job.nodes_now;
  nodes.insert(job.nodes_before.begin(), job.nodes_before.end());
  std::string text;
  size_t count = 0;
  for (NodeIndex node : nodes) {
    if (nodes_[node].attached || ++count > kNamedMax) continue;
    text += (text.empty() ? "" : ", ") + nodes_[node].name;
  }
  if (count > kNamedMax) text += fmt::format(" and {} more", count - kNamedMax);
  return text;
}

std::string State::MissingText(const Job& job, const VersionState& version) const {
  std::string text;
  size_t count = 0;
  for (uint32_t rank = 0; rank < version.world; ++rank) {
    const RankShard& shard = version.ranks[rank];
    if (IsAvailable(job, version, Rank{rank}) || ++count > kNamedMax) continue;
    text += fmt::format("{}rank {}", text.empty() ? "" : ", ", rank);
    if (shard.last_node != kNoNode)
      text += fmt::format(" (last on {})", nodes_[shard.last_node].name);
  }
  if (count > kNamedMax) text += fmt::format(" and {} more", count - kNamedMax);
  text = count == 0 ? fmt::format("version {} could not be prepared", ToString(version.id))
                    : fmt::format("version {} has no replica of {}", ToString(version.id), text);
  text += LostGroupsText(job, version);
  for (const std::string& damage : version.damage_texts) text += "; damaged: " + damage;
  std::string absent = AbsentNodes(job);
  if (!absent.empty()) text += "; not attached: " + absent;
  return text;
}

/// Describes the groups that cannot decode a rank without replicas, and their missing shards.
std::string State::LostGroupsText(const Job& job, const VersionState& version) const {
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr || !MayDecode(version) || IsFullyAvailable(job, version)) return "";
  std::string text;
  size_t named = 0;
  for (uint32_t group = 0; group < groups->firsts.size(); ++group) {
    const PlannedGroup& planned = job.lineages.at(version.id.incarnation).peers[group];
    const uint32_t first = groups->firsts[group];
    const auto end = first + static_cast<uint32_t>(planned.members.size());
    std::string missing;
    uint32_t members = 0;
    bool needed = false;
    for (uint32_t number = first; number < end; ++number) {
      const std::string lacks = MissingShardsText(job, version, number);
      if (lacks.empty()) continue;
      ++members;
      missing += fmt::format("{} {} ({})", missing.empty() ? "" : ",",
                             nodes_[groups->members[number].node].name, lacks);
      for (const PlanRank& rank : planned.members[number - first].ranks) {
        needed = needed || version.ranks[rank.rank.value].replicas.empty();
      }
    }
    const uint32_t erasures = Erasures(job, version, group, kAnyTier);
    // A group matters only if it cannot decode and one of its ranks has no replica.
    if (!needed || erasures <= planned.parity || ++named > kNamedMax) continue;
    text +=
        fmt::format("; parity group {} of {} nodes can decode without {} of them, it misses {}:{}",
                    group, planned.members.size(), planned.parity, members, missing);
  }
  return text;
}

/// Returns the names of the shards that a member of a group should have and does not have.
std::string State::MissingShardsText(const Job& job, const VersionState& version,
                                     uint32_t number) const {
  std::string text;
  const NodeIndex node = job.group_indexes.at(version.id.incarnation).members[number].node;
  const auto name = [&](Rank rank, const RankShard& shard) {
    const bool held = std::any_of(shard.replicas.begin(), shard.replicas.end(),
                                  [&](const Replica& replica) { return replica.node == node; });
    if (!held) text += (text.empty() ? "" : ", ") + ShardName(rank);
  };
  for (const PlanRank& rank : MemberAt(job, version.id.incarnation, number).ranks) {
    name(rank.rank, version.ranks[rank.rank.value]);
  }
  name(ParityRank(number), version.parity[number]);
  return text;
}

Status State::WhyNothingRestorable(const Job& job) const {
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (!it->second.committed() || IsAbandoned(job, it->first)) continue;
    std::string text = MissingText(job, it->second);
    auto unusable = job.plan.unusable.find(it->first);
    if (unusable != job.plan.unusable.end()) text += "; " + unusable->second;
    return FailedPreconditionError(fmt::format(
        "job '{}' has committed versions but none can be restored now: {}. Start the missing nodes "
        "again, or use another job name",
        job.name, text));
  }
  return FailedPreconditionError(
      fmt::format("job '{}': every committed version was abandoned or is being removed", job.name));
}

Status State::WhyNotRestorable(const Job& job, VersionId wanted) const {
  auto found = job.versions.find(wanted);
  if (found == job.versions.end() || !found->second.committed()) {
    return NotFoundError(
        fmt::format("job '{}' has no committed version {}", job.name, ToString(wanted)));
  }
  if (IsAbandoned(job, wanted)) {
    return FailedPreconditionError(
        fmt::format("version {} of job '{}' was abandoned: a later incarnation restored an older "
                    "version",
                    ToString(wanted), job.name));
  }
  return FailedPreconditionError(
      fmt::format("job '{}': {}", job.name, MissingText(job, found->second)));
}

}  // namespace holdfast::coord
