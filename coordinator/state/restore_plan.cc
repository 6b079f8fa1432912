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
  return std::all_of(job.nodes_now.begin(), job.nodes_now.end(), resolved) &&
         std::all_of(job.nodes_before.begin(), job.nodes_before.end(), resolved);
}

bool IsRestoring(const ReadContext& context, const Job& job) {
  if (!job.plan.waiters.empty()) return true;
  const bool undecided = job.phase == JobPhase::kRunning &&
                         job.lineage().decision == Decision::kNone && job.newest_seen.value == 0;
  return undecided && context.at.now - job.joined_at < kRestorePatience;
}

void PlaceRank(Context& context, Job& job, Rank rank, NodeIndex node) {
  NodeIndex& place = job.rank_nodes[rank.value];
  if (place == kNoNode) ++job.ranks_joined;
  if (place != node && rank.value < job.plan.tasks.size()) {
    ResetRestoreTask(job, job.plan.tasks[rank.value]);
  }
  place = node;
  if (job.subscribers.insert(node).second) job.job_state_to.insert(node);
  if (job.nodes_now.insert(node).second) StoreJob(context, job);
  job.changed = true;
}

void SwitchCandidate(Job& job, std::optional<VersionId> candidate) {
  RestorePlan& plan = job.plan;
  for (RestoreTask& task : plan.tasks) ResetRestoreTask(job, task);
  plan.candidate = candidate;
  plan.ready = 0;
  plan.tasks.assign(candidate ? job.lineage().world : 0, {});
}

void ResetRestoreTask(Job& job, RestoreTask& task) {
  if (task.phase == RestoreTask::Phase::kReady) --job.plan.ready;
  task.phase = RestoreTask::Phase::kIdle;
  task.request.reset();
}

void FailRestoreTasksOf(Context& context, Job& job, NodeIndex node, bool keep_ready) {
  for (RestoreTask& task : job.plan.tasks) {
    const bool ready = task.phase == RestoreTask::Phase::kReady;
    if (task.target == node && !(ready && keep_ready)) ResetRestoreTask(job, task);
    if (task.source.node == node && !ready && !keep_ready) ResetRestoreTask(job, task);
    // Whether a decode works depends on which nodes are attached.
    std::erase_if(task.tried,
                  [](const RestoreTask::Tried& tried) { return tried.replica == kDecode; });
    task.retry_at = std::min(task.retry_at, context.at.now);
  }
  job.plan.unusable.clear();
}

void RefuseWaiters(Context& context, Job& job, const Status& why, bool include_reshards) {
  std::vector<RestoreWaiter> left;
  for (const RestoreWaiter& waiter : std::exchange(job.plan.waiters, {})) {
    if (include_reshards || !waiter.reshard) {
      Answer(context, waiter.request, why);
    } else {
      left.push_back(waiter);
    }
  }
  job.plan.waiters = std::move(left);
  if (job.plan.waiters.empty()) job.plan.wanted.reset();
}

}  // namespace holdfast::coord
