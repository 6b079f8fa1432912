#include "coordinator/state/rollback.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "coordinator/state/reshard.h"
#include "coordinator/state/restore_plan.h"
#include "coordinator/state/restore_texts.h"
#include "coordinator/state/survivability.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
/// Returns the nearest replica of the rank's shard that the rank's own node has or reaches, or
/// nullptr.
const Replica* LocalReplica(const ReadContext& context, const Job& job, const VersionState& version,
                            Rank rank) {
  const NodeIndex node = job.rank_nodes[rank.value];
  const Replica* best = nullptr;
  for (const Replica& replica : version.ranks[rank.value].replicas) {
    const bool reached = IsShared(replica.tier)
                             ? NodeThatReaches(context, replica.tier, node) == node
                             : replica.node == node;
    if (!reached) continue;
    if (best == nullptr || replica.tier < best->tier) best = &replica;
  }
  return best;
}

/// Returns false if a shard is missing and nodes that may have it can still return.
bool AnswerRollback(Context& context, Job& job, const RestoreWaiter& waiter, VersionId wanted) {
  auto found = job.versions.find(wanted);
  if (found == job.versions.end() || !found->second.committed() || IsAbandoned(job, wanted)) {
    Answer(context, waiter.request, WhyNotRestorable(context, job, wanted));
    return true;
  }
  const VersionState& version = found->second;
  const auto decide = [&] {
    LineageRecord& lineage = job.lineage();
    if (lineage.decision != Decision::kNone || wanted.incarnation == job.incarnation) return;
    lineage.decision = Decision::kVersion;
    lineage.restored = wanted;
    context.effects.emplace_back(PutLineage{lineage, LineageChange::kDecided});
    job.job_state_changed = true;
  };
  if (waiter.reshard) {
    if (!waiter.wanted && IsFullyAvailable(job, version)) decide();
    if (!AnswerReshard(context, job, version, waiter)) return false;
  } else if (version.world != job.lineage().world) {
    Answer(context, waiter.request, WorldMismatch(job, version));
    return true;
  } else if (const Replica* own = LocalReplica(context, job, version, waiter.rank)) {
    // The rank's agent has the shard in memory, or loads it from its disk or a shared tier.
    decide();
    context.effects.emplace_back(
        Reply{waiter.request, {}, job.incarnation, wanted, own->tier, version.world});
  } else {
    Answer(context, waiter.request,
           FailedPreconditionError(fmt::format(
               "version {} of job '{}': the node of rank {} has no replica of the rank's shard; "
               "read the version with a reader (holdfast_reader_open), which reads from any node",
               ToString(wanted), job.name, waiter.rank.value)));
    return true;
  }
  job.plan.rolled_back_to = wanted;
  // A newer pending version was saved by some ranks before the rollback. The other ranks must not
  // complete it with shards that they save after the rollback.
  for (auto& [id, pending] : job.versions) {
    const bool newer = id > wanted && id.incarnation == job.incarnation;
    if (newer && pending.phase == Phase::kPending) AbortVersion(context, job, pending, true);
  }
  return true;
}

/// Answers when all ranks wait, since all must get the same version.
void AnswerRollbacksToNewest(Context& context, Job& job) {
  std::vector<RestoreWaiter>& waiters = job.plan.rollbacks_to_newest;
  if (waiters.size() < job.lineage().world) return;  // each rank causes an event
  std::set<Rank> ranks;
  for (const RestoreWaiter& waiter : waiters) ranks.insert(waiter.rank);
  if (ranks.size() != job.lineage().world) return;
  const auto newest = NewestRestorable(job);
  if (!newest && !BarrierOpen(context, job)) return;
  if (!newest) return RefuseAll(context, waiters, WhyNothingRestorable(context, job));
  std::erase_if(waiters, [&](const RestoreWaiter& waiter) {
    return AnswerRollback(context, job, waiter, *newest);
  });
}
}  // namespace

void AdvanceRollback(Context& context, Job& job) {
  RestorePlan& plan = job.plan;
  if (plan.rollbacks.empty() && plan.rollbacks_to_newest.empty()) return;
  std::erase_if(plan.rollbacks, [&](const RestoreWaiter& waiter) {
    return AnswerRollback(context, job, waiter, *waiter.wanted);
  });
  AnswerRollbacksToNewest(context, job);
  if (plan.rollbacks.empty() && plan.rollbacks_to_newest.empty()) {
    plan.open = job.lineage().decision != Decision::kFresh;
  }
}

}  // namespace holdfast::coord
