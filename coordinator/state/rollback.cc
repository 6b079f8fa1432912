#include <fmt/format.h>

#include <set>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// Rollback: ranks of an incarnation that has committed versions restore one of them, or an older
// one, while the job runs. The restore decision of the incarnation does not change. If it has none,
// a rollback to a version of an earlier incarnation becomes its restore decision.

namespace holdfast::coord {

void State::AdvanceRollback(Job& job) {
  RestorePlan& plan = job.plan;
  if (plan.rollbacks.empty()) return;
  std::set<Rank> to_newest;  // ranks that request the newest: all must get the same version
  for (const RestoreWaiter& waiter : plan.rollbacks) {
    if (waiter.wanted.incarnation.value == 0) to_newest.insert(waiter.rank);
  }
  const bool all = to_newest.size() == job.lineage().world;
  const VersionId newest = all ? NewestRestorable(job) : VersionId{};
  std::vector<RestoreWaiter> waiting;
  for (RestoreWaiter& waiter : std::exchange(plan.rollbacks, {})) {
    const bool named = waiter.wanted.incarnation.value != 0;
    if (!named && !all) {
      waiting.push_back(std::move(waiter));
    } else if (!named && newest.incarnation.value == 0) {
      if (BarrierOpen(job)) {
        Answer(waiter.request, WhyNothingRestorable(job));
      } else {
        waiting.push_back(std::move(waiter));
      }
    } else if (!AnswerRollback(job, waiter, named ? waiter.wanted : newest)) {
      waiting.push_back(std::move(waiter));
    }
  }
  plan.rollbacks = std::move(waiting);
  if (plan.rollbacks.empty()) plan.open = job.lineage().decision != Decision::kFresh;
}

/// Returns false if a shard is missing and nodes that may have it can still return.
bool State::AnswerRollback(Job& job, const RestoreWaiter& waiter, VersionId wanted) {
  auto found = job.versions.find(wanted);
  if (found == job.versions.end() || !found->second.committed() || IsAbandoned(job, wanted)) {
    Answer(waiter.request, WhyNotRestorable(job, wanted));
    return true;
  }
  const VersionState& version = found->second;
  const auto decide = [&] {
    LineageRecord& lineage = job.lineage();
    if (lineage.decision != Decision::kNone || wanted.incarnation == job.incarnation) return;
    lineage.decision = Decision::kVersion;
    lineage.restored = wanted;
    effects_.emplace_back(PutLineage{lineage, LineageChange::kDecided});
    job.job_state_changed = true;
  };
  if (waiter.reshard) {
    if (waiter.wanted.incarnation.value == 0 && IsFullyAvailable(job, version)) decide();
    if (!AnswerReshard(job, version, waiter)) return false;
  } else if (version.world != job.lineage().world) {
    Answer(waiter.request, WorldMismatch(job, version));
    return true;
  } else if (const Replica* own = LocalReplica(job, version, waiter.rank)) {
    // The rank's agent has the shard in memory, or loads it from its disk.
    decide();
    effects_.emplace_back(
        Reply{waiter.request, {}, job.incarnation, wanted, own->tier, version.world});
  } else {
    Answer(waiter.request,
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
    if (newer && pending.phase == Phase::kPending) Abort(job, pending, true);
  }
  return true;
}

/// Returns the nearest replica of the rank's shard on the rank's own node, or nullptr.
const Replica* State::LocalReplica(const Job& job, const VersionState& version, Rank rank) {
  const Replica* best = nullptr;
  for (const Replica& replica : version.ranks[rank.value].replicas) {
    if (replica.node != job.rank_nodes[rank.value]) continue;
    if (best == nullptr || replica.tier < best->tier) best = &replica;
  }
  return best;
}

}  // namespace holdfast::coord
