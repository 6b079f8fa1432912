#include "coordinator/state/reshard.h"

#include <algorithm>

#include "coordinator/state/restore_plan.h"
#include "coordinator/state/restore_texts.h"
#include "coordinator/state/survivability.h"

namespace holdfast::coord {

Tier ReshardTier(const VersionState& version) {
  if (version.reshard_tier) return *version.reshard_tier;
  Tier farthest = Tier::kMemory;
  for (const RankShard& shard : version.ranks) {
    Tier nearest = shard.replicas.empty() ? Tier::kPeer : shard.replicas.front().tier;
    for (const Replica& replica : shard.replicas) nearest = std::min(nearest, replica.tier);
    farthest = std::max(farthest, nearest);
  }
  version.reshard_tier = farthest;
  return farthest;
}

bool AnswerReshard(Context& context, Job& job, const VersionState& version,
                   const RestoreWaiter& waiter) {
  if (IsFullyAvailable(job, version)) {
    const Tier tier = ReshardTier(version);
    context.effects.emplace_back(
        Reply{waiter.request, {}, job.incarnation, version.id, tier, version.world});
    return true;
  }
  if (!BarrierOpen(context, job)) return false;
  Answer(context, waiter.request, FailedPreconditionError(MissingText(context, job, version)));
  return true;
}

}  // namespace holdfast::coord
