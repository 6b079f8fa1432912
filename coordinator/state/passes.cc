#include "coordinator/state/passes.h"

#include <vector>

#include "coordinator/state/forget.h"
#include "coordinator/state/forgotten.h"
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

void AdvanceJob(Context& context, Job& job) {
  if (job.changed) {
    AdvanceRestore(context, job);
    ApplyRetention(context, job);
    AdvanceTargets(job);
    job.changed = false;
  }
  SendJobStates(context, job);
  if (job.repair_due) AdvanceRepairs(context, job);
  for (const auto& [node, version] : job.remove_disk) {
    SendDirective(context, node, RemoveVersion{job.name, version, Tier::kDisk});
  }
  job.remove_disk.clear();
}
}  // namespace

void OnTick(Context& context, const Tick& event) {
  AdvanceNodes(context, event);
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
}

void ApplyChanges(Context& context) {
  SendForgotten(context);
  for (auto& [name, job] : context.cluster.jobs) {
    if (job.changed || job.job_state_changed || !job.job_state_to.empty() || job.repair_due) {
      AdvanceJob(context, job);
    }
  }
}

}  // namespace holdfast::coord
