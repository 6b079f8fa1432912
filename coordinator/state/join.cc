#include "coordinator/state/join.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/lifecycle.h"
#include "coordinator/state/owner.h"
#include "coordinator/state/parity_plan.h"
#include "coordinator/state/restore_plan.h"
#include "coordinator/state/targets.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
/// Whether the process joined an incarnation with this run ID before.
bool IsPartOfRun(const Job& job, const RankJoined& event) {
  if (!event.joined_before) return false;
  auto before = job.lineages.find(*event.joined_before);
  return before == job.lineages.end() || before->second.run_id == event.run_id;
}

Status CheckJoin(Context& context, const RankJoined& event, NodeIndex& index) {
  Node* node = FindNode(context, event.node);
  if (node == nullptr || !node->attached) {
    return UnavailableError(fmt::format("node {} is not attached yet; try again", event.node));
  }
  if (node->agent_start != event.agent_start) {
    return UnavailableError(
        fmt::format("another agent of node {} is attached; try again", event.node));
  }
  index = context.cluster.node_names.at(event.node);
  if (event.world == 0 || event.world > kWorldMax || event.rank.value >= event.world) {
    return InvalidArgumentError(fmt::format(
        "rank {} in a world of {}: ranks go from 0 to world - 1, the world from 1 to {}",
        event.rank.value, event.world, kWorldMax));
  }
  return Status::Ok();
}

/// Whether the join belongs to a new start with the run ID of the current incarnation: some
/// launchers reuse run IDs for restarts. It does if the process is new, its rank has joined before,
/// and steps were saved. Without saved steps no new incarnation is needed.
bool IsNewStart(const Job& job, const RankJoined& event) {
  if (job.lineage().run_id != event.run_id) return false;
  if (event.may_have_joined) return false;
  // A higher incarnation than the current one is of a start that this store has no record of.
  if (IsPartOfRun(job, event)) return event.joined_before > job.incarnation;
  if (job.newest_seen.value == 0) return false;
  if (event.world != job.lineage().world) return true;
  if (job.rank_nodes[event.rank.value] != kNoNode) return true;
  // After a restart of the coordinator, the rank's shards show that it has joined before.
  return std::any_of(job.versions.begin(), job.versions.end(), [&](const auto& entry) {
    return entry.first.incarnation == job.incarnation &&
           (entry.second.tiers != 0 || entry.second.ranks[event.rank.value].known);
  });
}

Status CheckRun(const Job& job, const RankJoined& event) {
  const auto owner = job.uid == kNoOwner ? std::nullopt : std::optional(job.uid);
  HOLDFAST_RETURN_IF_ERROR(CheckOwner(job.name, owner, event.uid));
  const bool same_run = job.lineage().run_id == event.run_id;
  if (same_run && IsPartOfRun(job, event) && event.joined_before < job.incarnation) {
    return FencedError(
        fmt::format("run '{}' of job '{}' was started again: incarnation {} runs now, this process "
                    "belongs to incarnation {}",
                    event.run_id, job.name, job.incarnation.value, event.joined_before->value));
  }
  for (const auto& [incarnation, lineage] : job.lineages) {
    if (same_run || lineage.run_id != event.run_id) continue;
    return FencedError(fmt::format(
        "run '{}' was incarnation {} of job '{}'; incarnation {} (run '{}') runs now", event.run_id,
        incarnation.value, job.name, job.incarnation.value, job.lineage().run_id));
  }
  const LineageRecord& current = job.lineage();
  if (same_run && current.world != event.world && !IsNewStart(job, event)) {
    return InvalidArgumentError(
        fmt::format("rank {}: its world has {} ranks; the world of incarnation {} of job '{}' has "
                    "{}",
                    event.rank.value, event.world, job.incarnation.value, job.name, current.world));
  }
  return Status::Ok();
}

/// The ranks of the current incarnation that are connected to their agents.
struct RunningRanks {
  static constexpr size_t kNamed = 8;
  std::vector<std::pair<Rank, NodeIndex>> first;  // one more than are named
  size_t count = 0;
};

/// Counts at most `most` ranks.
RunningRanks RunningRanksOf(const ReadContext& context, const Job& job, size_t most) {
  RunningRanks running;
  for (const auto& [rank, index] : job.connected) {
    if (running.count == most) break;
    if (!context.cluster.nodes[index].attached) continue;
    if (running.count++ <= RunningRanks::kNamed) running.first.emplace_back(rank, index);
  }
  return running;
}

/// Whether the running rank is the one that joins: before a process joins, its agent makes sure
/// that the rank's previous process has ended.
bool IsSame(const ReadContext& context, Rank rank, NodeIndex index, const RankJoined& event) {
  return rank == event.rank && context.cluster.nodes[index].name == event.node;
}

/// Whether another rank of the current incarnation runs.
bool OtherRuns(const ReadContext& context, const Job& job, const RankJoined& event) {
  const RunningRanks running = RunningRanksOf(context, job, 2);
  return running.count == 2 || (running.count == 1 && !IsSame(context, running.first[0].first,
                                                              running.first[0].second, event));
}

/// Names the running ranks other than the one that joins.
std::string RunningRanksText(const ReadContext& context, const RunningRanks& running,
                             const Job& job, const RankJoined& event) {
  const auto own = job.connected.find(event.rank);
  const bool counted = own != job.connected.end() && context.cluster.nodes[own->second].attached &&
                       IsSame(context, own->first, own->second, event);
  const size_t count = running.count - (counted ? 1 : 0);
  std::string text;
  size_t named = 0;
  for (const auto& [rank, index] : running.first) {
    if (IsSame(context, rank, index, event) || named == RunningRanks::kNamed) continue;
    ++named;
    text += fmt::format("{}rank {} on node {}", text.empty() ? "" : ", ", rank.value,
                        context.cluster.nodes[index].name);
  }
  if (count > named) text += fmt::format(" and {} more", count - named);
  return text;
}

namespace {

/// Fences the current incarnation: its requests are refused, and the nodes with its replicas stay
/// listed as far as restores may need them.
void FenceCurrent(Context& context, Job& job) {
  // If the newest version at peer is of an earlier incarnation, its nodes stay in `nodes_before`:
  // restores wait for them until the current incarnation has replaced that version.
  bool earlier_floor = false;
  if (!job.lineages.empty()) {
    const auto floor = PeerFloor(job);
    earlier_floor = floor && floor->incarnation < job.incarnation;
    const Status fenced = FencedError(
        fmt::format("incarnation {} of job '{}' started", job.incarnation.value + 1, job.name));
    RefuseWaiters(context, job, fenced);
    RefuseAll(context, job.plan.rollbacks, fenced);
    RefuseAll(context, job.plan.rollbacks_to_newest, fenced);
  }
  // An incarnation that committed nothing has not replaced earlier replicas: their nodes stay
  // listed.
  bool committed_any = false;
  for (const auto& [id, version] : job.versions) {
    committed_any = committed_any || (id.incarnation == job.incarnation && version.committed());
  }
  if (committed_any && !earlier_floor) job.nodes_before.clear();
  job.nodes_before.insert(job.nodes_now.begin(), job.nodes_now.end());
  job.nodes_now.clear();
}

}  // namespace

void OpenIncarnation(Context& context, Job& job, const RankJoined& event) {
  FenceCurrent(context, job);
  // The new incarnation is above all that any node reported of the job. If the store was lost or
  // replaced by an older copy, numbers must not be used twice: older versions would be taken for
  // versions of this start.
  const Incarnation before = job.incarnation;
  job.incarnation = std::max(job.incarnation, HighestReported(context, job.name));
  job.incarnation = Incarnation{job.incarnation.value + 1};
  HOLDFAST_INVARIANT(*context.options.invariants,
                     job.incarnation > before && !job.lineages.contains(job.incarnation),
                     Kv("job", job.name), Kv("before", before.value),
                     Kv("now", job.incarnation.value));
  job.abort_floor = Step{0};
  job.disputes.clear();  // all ranks begin with the values that they restore
  job.newest_seen = Step{0};
  RestartTargets(job, Step{0});
  job.connected.clear();
  job.goodbyes.clear();
  job.wanted.reset();
  job.newest_at = context.at.now;

  LineageRecord lineage;
  lineage.job = job.name;
  lineage.incarnation = job.incarnation;
  lineage.run_id = event.run_id;
  lineage.world = event.world;
  lineage.life = context.options.life;
  job.lineages[job.incarnation] = lineage;
  job.rank_nodes.assign(event.world, kNoNode);
  job.slot_bytes.assign(event.world, 0);
  job.ranks_joined = 0;
  job.plan = {};
  job.plan.open = true;
  // Pending versions are aborted: an older incarnation never commits a new version.
  for (auto& [id, version] : job.versions) {
    if (version.phase == Phase::kPending) AbortVersion(context, job, version, false);
  }
  context.effects.emplace_back(PutLineage{lineage});
  PrunePlans(context, job);
  StoreJob(context, job);
  job.changed = true;
  job.job_state_changed = true;
}

void AdmitRank(Context& context, Job& job, const RankJoined& event, NodeIndex node) {
  job.joined_at = context.at.now;
  job.alive_at = context.at.now;
  job.goodbyes.erase(event.rank);
  SetPhase(context, job, JobPhase::kRunning);
  // CheckJoin() and CheckRun() have compared the request with its world and the incarnation's.
  if (!HOLDFAST_INVARIANT(*context.options.invariants,
                          event.rank.value < job.rank_nodes.size() &&
                              job.rank_nodes.size() == job.slot_bytes.size(),
                          Kv("job", job.name), Kv("rank", event.rank.value),
                          Kv("ranks", job.rank_nodes.size()))) {
    return;
  }
  PlaceRank(job, event.rank, node);
  if (event.slot_bytes != 0) job.slot_bytes[event.rank.value] = event.slot_bytes;
  PlanPeers(context, job);
  Reply reply;
  reply.incarnation = job.incarnation;
  Answer(context, event.request, std::move(reply));
}
}  // namespace

void OnRankJoined(Context& context, const RankJoined& event) {
  NodeIndex node = kNoNode;
  Status status = CheckJoin(context, event, node);
  if (!status.ok()) return Answer(context, event.request, std::move(status));
  auto found = context.cluster.jobs.find(event.job);
  if (found == context.cluster.jobs.end()) {
    found = context.cluster.jobs.try_emplace(event.job).first;
    found->second.name = event.job;
    found->second.uid = event.uid;
    if (auto forgotten = context.cluster.forgotten.find(event.job);
        forgotten != context.cluster.forgotten.end()) {
      // Replicas that remain on nodes are recognized by their incarnation.
      found->second.incarnation = found->second.forgotten_upto = forgotten->second.upto;
      context.cluster.forgotten.erase(forgotten);
    }
    OpenIncarnation(context, found->second, event);
  } else {
    Job& job = found->second;
    status = CheckRun(job, event);
    if (!status.ok()) return Answer(context, event.request, std::move(status));
    if (job.uid == kNoOwner) job.uid = event.uid;
    if (IsNewStart(job, event) && OtherRuns(context, job, event)) {
      job.waiting_for_end_of = job.incarnation;
      job.waiting_joins.push_back({event, context.at.now + context.options.rejoin_wait});
      return;
    }
    if (job.lineage().run_id != event.run_id || IsNewStart(job, event)) {
      OpenIncarnation(context, job, event);
    }
  }
  AdmitRank(context, found->second, event, node);
}

void AdvanceJoins(Context& context, Job& job) {
  if (job.waiting_joins.empty()) return;
  // While several ranks run, all joins wait on. This is called for each report of a node, so it
  // must not read all joins of a large job then.
  const bool all_wait =
      job.waiting_for_end_of == job.incarnation && RunningRanksOf(context, job, 2).count == 2;
  std::vector<RankJoined> ready;
  if (!all_wait) {
    std::erase_if(job.waiting_joins, [&](const WaitingJoin& waiting) {
      const RankJoined& event = waiting.event;
      if (IsNewStart(job, event) && OtherRuns(context, job, event)) return false;
      ready.push_back(event);
      return true;
    });
  }
  std::optional<RunningRanks> running;
  while (!job.waiting_joins.empty() && context.at.now >= job.waiting_joins.front().deadline) {
    if (!running) running = RunningRanksOf(context, job, job.connected.size());
    const RankJoined event = std::move(job.waiting_joins.front().event);
    job.waiting_joins.pop_front();
    Answer(context, event.request,
           FailedPreconditionError(fmt::format(
               "run '{}' of job '{}' has trained to step {} and still runs: {}; end it, or give "
               "this start another run ID (HOLDFAST_RUN_ID)",
               event.run_id, job.name, job.newest_seen.value,
               RunningRanksText(context, *running, job, event))));
  }
  for (const RankJoined& event : ready) OnRankJoined(context, event);
}

}  // namespace holdfast::coord
