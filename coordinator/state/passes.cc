#include "coordinator/state/passes.h"

#include <utility>
#include <vector>

#include "coordinator/state/adoption.h"
#include "coordinator/state/drain.h"
#include "coordinator/state/flush.h"
#include "coordinator/state/forget.h"
#include "coordinator/state/forgotten.h"
#include "coordinator/state/invariants.h"
#include "coordinator/state/job_states.h"
#include "coordinator/state/join.h"
#include "coordinator/state/lifecycle.h"
#include "coordinator/state/nodes.h"
#include "coordinator/state/repair.h"
#include "coordinator/state/restore.h"
#include "coordinator/state/retention.h"
#include "coordinator/state/targets.h"

namespace holdfast::coord {
namespace {
// How often under-protected versions are counted again if no event has changed them.
constexpr auto kCountInterval = std::chrono::seconds(1);
// The record of a job names all its nodes. While nodes join, it is stored when it lacks one of this
// many names, so that all names together are written a few times and not once for each node; and
// when it has lacked one for this long. A short record is stored at once.
constexpr size_t kRecordShare = 8;
constexpr size_t kShortRecord = 64;
constexpr auto kRecordPause = std::chrono::milliseconds(100);

/// Sends the removals that are due. Of a shared tier, any node that reaches the tier removes the
/// version, and it counts as removed at once: what that node cannot remove is reported again when
/// the tier is listed.
void SendRemovals(Context& context, Job& job) {
  for (const Removal& removal : std::exchange(job.removals, {})) {
    const bool shared = IsShared(removal.tier);
    const NodeIndex node = shared ? NodeThatReaches(context, removal.tier) : removal.node;
    if (node == kNoNode) continue;
    SendDirective(context, node, RemoveVersion{job.name, removal.version, removal.tier});
    auto version = job.versions.find(removal.version);
    if (!shared || version == job.versions.end()) continue;
    version->second.RemoveReplicasIf(
        [&](const Replica& replica) { return replica.tier == removal.tier; });
    job.changed = true;
  }
}

/// Stores the record when it lacks nodes and is due. A commit makes it due: the record names the
/// nodes of every committed version. Until then, a restarted coordinator needs no node that it does
/// not know.
void StoreNodes(Context& context, Job& job) {
  if (job.unrecorded == 0) return;
  if (!job.record_due_at) job.record_due_at = context.at.now + kRecordPause;
  const size_t names = job.nodes_now.size() + job.nodes_before.size();
  const bool many = names <= kShortRecord || job.unrecorded * kRecordShare >= names;
  if (many || job.record_due || context.at.now >= *job.record_due_at) StoreJob(context, job);
}

void AdvanceJob(Context& context, Job& job) {
  if (job.changed) {
    AdvanceRestore(context, job);
    ApplyRetention(context, job);
    PerTier<Step> before;
    for (const TierTraits& traits : kTierTable) {
      before[traits.tier] = job.targets[traits.tier].step();
    }
    AdvanceTargets(job);
    for (const TierTraits& traits : kTierTable) {
      HOLDFAST_INVARIANT(*context.options.invariants,
                         job.targets[traits.tier].step() >= before[traits.tier],
                         Kv("job", job.name), Kv("tier", traits.name),
                         Kv("step", job.targets[traits.tier].step().value));
    }
    AdvanceDeparture(context, job);
    CheckJob(context, job);
    job.changed = false;
  }
  SendJobStates(context, job);
  SendRemovals(context, job);
}
}  // namespace

void OnTick(Context& context, const Tick& event) {
  AdvanceNodes(context, event);
  AdoptWhatIsComplete(context);
  std::vector<Job*> expired;
  for (auto& [name, job] : context.cluster.jobs) {
    if (job.plan.open || job.retention_due) job.changed = true;
    const bool count_due = !job.under_protected.empty() &&
                           context.at.now - job.under_protected_counted_at >= kCountInterval;
    if (!job.repairs.empty() || count_due) job.repair_due = true;
    AdvanceLifecycle(context, job);
    AdvanceJoins(context, job);
    const bool forget = job.phase != JobPhase::kRunning &&
                        context.options.forget_after.count() != 0 &&
                        context.at.now - job.ended_at >= context.options.forget_after;
    if (forget) expired.push_back(&job);
  }
  for (Job* job : expired) ForgetJob(context, *job, nullptr);
  AllowRunsToLeave(context);
}

void ApplyChanges(Context& context) {
  SendForgotten(context);
  for (auto& [name, job] : context.cluster.jobs) {
    if (job.changed || job.job_state_changed || !job.job_state_to.empty()) AdvanceJob(context, job);
  }
}

void FinishBatch(Context& context) {
  for (auto& [name, job] : context.cluster.jobs) {
    if (job.repair_due) AdvanceRepairs(context, job);
    SendRemovals(context, job);
    StoreNodes(context, job);
  }
}

}  // namespace holdfast::coord
