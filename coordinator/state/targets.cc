#include "coordinator/state/targets.h"

#include <algorithm>

#include "coordinator/state/survivability.h"

namespace holdfast::coord {

void AdvanceTargets(Job& job) {
  if (job.targets[Tier::kDisk].AllAcknowledged(job.lineage().world))
    job.targets[Tier::kDisk].Abandon();
  const Step next{job.newest_seen.value + 1};
  if (job.targets[Tier::kDisk].Advance(next)) job.job_state_changed = true;
  const GroupIndex* groups = job.groups_of(job.incarnation);
  if (groups == nullptr) return;
  if (job.targets[Tier::kPeer].AllAcknowledged(groups->members.size()) &&
      !ParityAwaitsMemory(job)) {
    job.targets[Tier::kPeer].Abandon();
  }
  // The peers take the version that is being written to disk, so that the disks alone can restore
  // it after a loss of nodes. If they can no longer take it, they take the next step.
  const Step to_disk = job.targets[Tier::kDisk].step();
  const bool follow_disk = to_disk > job.targets[Tier::kPeer].reached() && to_disk < next;
  if (!job.targets[Tier::kPeer].Advance(follow_disk ? to_disk : next)) return;
  job.job_state_changed = true;
  job.retention_due = true;  // versions that could still reach tier peer were kept until now
}

void RestartTargets(Job& job, Step step) {
  for (const TierTraits& traits : kTierTable) {
    if (TierTarget* target = job.target(traits.tier)) target->Restart(step);
  }
}

void ContinueAtPeer(Job& job) {
  TierTarget& target = job.targets[Tier::kPeer];
  Step first = target.step();
  target.Restart(Step{0});
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    const VersionState& version = it->second;
    if (version.id.incarnation != job.incarnation || version.committed_at(Tier::kPeer)) break;
    if (version.committed() && MayReachPeer(job, version)) first = version.id.step;
  }
  target.Restart(first);
}

bool SelectsVersion(const Job& job, const TierTarget& target, VersionId version) {
  if (version.incarnation != job.incarnation || version.step < target.step()) return false;
  auto it = job.versions.lower_bound({job.incarnation, target.step()});
  for (; it != job.versions.end() && it->first < version; ++it) {
    if (it->second.phase == Phase::kPending || it->second.committed()) return false;
  }
  return true;
}

bool MayReachPeer(const Job& job, const VersionState& version) {
  return version.id.incarnation == job.incarnation && job.groups_of(job.incarnation) != nullptr &&
         version.id.step >= job.targets[Tier::kPeer].step() &&
         ((version.tiers | version.failed_tiers) & TierBit(Tier::kPeer)) == 0;
}

bool ParityAwaitsMemory(const Job& job) {
  const size_t members = job.group_indexes.at(job.incarnation).members.size();
  auto it = job.versions.lower_bound({job.incarnation, job.targets[Tier::kPeer].step()});
  return std::any_of(it, job.versions.end(), [&](const auto& entry) {
    const VersionState& version = entry.second;
    return version.phase == Phase::kPending && MayReachPeer(job, version) &&
           version.parity_held_at(Tier::kMemory) == members;
  });
}

}  // namespace holdfast::coord
