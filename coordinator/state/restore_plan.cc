#include "coordinator/state/restore_plan.h"

#include <algorithm>
#include <utility>

namespace holdfast::coord {
namespace {
// How long repairs wait for ranks that joined and neither restore nor save, since they may be
// loading.
constexpr auto kRestorePatience = std::chrono::minutes(1);
}  // namespace

bool BarrierOpen(const ReadContext& context, const Job& job) {
  auto resolved = [&context](NodeIndex index) {
    const Node& node = context.cluster.nodes[index];
    return node.attached || context.at.now - node.lost_at >= context.options.node_lease;
  };
  const NodeIndex last = job.barrier_closed_by;
  if (last != kNoNode && !resolved(last) &&
      (job.nodes_now.contains(last) || job.nodes_before.contains(last))) {
    return false;
  }
  job.barrier_closed_by = kNoNode;
  for (const std::set<NodeIndex>* nodes : {&job.nodes_now, &job.nodes_before}) {
    const auto closed = std::ranges::find_if_not(*nodes, resolved);
    if (closed == nodes->end()) continue;
    job.barrier_closed_by = *closed;
    return false;
  }
  return true;
}

bool IsRestoring(const ReadContext& context, const Job& job) {
  if (job.plan.is_awaited()) return true;
  const bool undecided = job.phase == JobPhase::kRunning &&
                         job.lineage().decision == Decision::kNone && job.newest_seen.value == 0;
  return undecided && context.at.now - job.joined_at < kRestorePatience;
}

void AddNode(Job& job, NodeIndex node) {
  if (job.nodes_now.insert(node).second) ++job.unrecorded;
}

void PlaceRank(Job& job, Rank rank, NodeIndex node) {
  NodeIndex& place = job.rank_nodes[rank.value];
  if (place == kNoNode) ++job.ranks_joined;
  if (place != node) ResetRestoreTask(job, rank);
  place = node;
  if (job.subscribers.insert(node).second) job.job_state_to.insert(node);
  AddNode(job, node);
  job.changed = true;
}

void SwitchCandidate(Job& job, std::optional<VersionId> candidate) {
  RestorePlan& plan = job.plan;
  plan.candidate = candidate;
  plan.ready = 0;
  plan.tasks.assign(candidate ? job.lineage().world : 0, {});
  plan.due.clear();
  plan.failed.clear();
  plan.involved.clear();
  for (uint32_t rank = 0; rank < plan.tasks.size(); ++rank) {
    if (job.rank_nodes[rank] != kNoNode) plan.due.insert(plan.due.end(), Rank{rank});
  }
}

void ResetRestoreTask(Job& job, Rank rank) {
  if (rank.value >= job.plan.tasks.size()) return;
  RestoreTask& task = job.plan.tasks[rank.value];
  if (task.phase == RestoreTask::Phase::kReady) --job.plan.ready;
  task.phase = RestoreTask::Phase::kIdle;
  task.request.reset();
  job.plan.due.insert(rank);
}

void FailRestoreTasksOf(Context& context, Job& job, NodeIndex node, bool keep_ready) {
  RestorePlan& plan = job.plan;
  const auto involved = plan.involved.find(node);
  if (involved != plan.involved.end()) {
    const std::vector<Rank> ranks = std::exchange(involved->second, {});
    for (const Rank rank : ranks) {
      const RestoreTask& task = plan.tasks[rank.value];
      const bool ready = task.phase == RestoreTask::Phase::kReady;
      if (task.phase == RestoreTask::Phase::kIdle) continue;
      if (task.target == node && ready && keep_ready) {
        plan.involved[node].push_back(rank);
      } else if (task.target == node || (task.source.node == node && !ready && !keep_ready)) {
        ResetRestoreTask(job, rank);
      } else {
        plan.involved[node].push_back(rank);
      }
    }
  }
  for (const Rank rank : plan.failed) {
    RestoreTask& task = plan.tasks[rank.value];
    // Whether a decode works depends on which nodes are attached.
    std::erase_if(task.tried,
                  [](const RestoreTask::Tried& tried) { return tried.replica == kDecode; });
    task.retry_at = std::min(task.retry_at, context.at.now);
  }
  std::erase_if(plan.unreached,
                [node](const auto& pair) { return pair.first == node || pair.second == node; });
  plan.unusable.clear();
}

void RefuseAll(Context& context, std::vector<RestoreWaiter>& waiters, const Status& why) {
  for (const RestoreWaiter& waiter : std::exchange(waiters, {})) {
    Answer(context, waiter.request, why);
  }
}

void RefuseWaiters(Context& context, Job& job, const Status& why, bool include_reshards) {
  RestorePlan& plan = job.plan;
  for (const auto& [rank, waiter] : std::exchange(plan.waiters, {})) {
    Answer(context, waiter.request, why);
  }
  if (include_reshards) RefuseAll(context, plan.reshards, why);
  if (!plan.is_awaited()) plan.wanted.reset();
}

}  // namespace holdfast::coord
