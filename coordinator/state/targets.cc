#include "coordinator/state/targets.h"

#include <algorithm>

#include "coordinator/state/survivability.h"

namespace holdfast::coord {

void AdvanceTargets(Job& job) {
  if (job.disk_target.AllAcknowledged(job.lineage().world)) job.disk_target.Abandon();
  const Step next{job.newest_seen.value + 1};
  if (job.disk_target.Advance(next)) job.job_state_changed = true;
  const GroupIndex* groups = job.groups_of(job.incarnation);
  if (groups == nullptr) return;
  if (job.peer_target.AllAcknowledged(groups->members.size()) && !ParityAwaitsMemory(job)) {
    job.peer_target.Abandon();
  }
  // The peers take the version that is being written to disk, so that the disks alone can restore
  // it after a loss of nodes. If they can no longer take it, they take the next step.
  const Step to_disk = job.disk_target.step();
  const bool follow_disk = to_disk > job.peer_target.reached() && to_disk < next;
  if (!job.peer_target.Advance(follow_disk ? to_disk : next)) return;
  job.job_state_changed = true;
  job.retention_due = true;  // versions that could still reach tier peer were kept until now
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
         version.id.step >= job.peer_target.step() &&
         ((version.tiers | version.failed_tiers) & TierBit(Tier::kPeer)) == 0;
}

bool ParityAwaitsMemory(const Job& job) {
  const size_t members = job.group_indexes.at(job.incarnation).members.size();
  auto it = job.versions.lower_bound({job.incarnation, job.peer_target.step()});
  return std::any_of(it, job.versions.end(), [&](const auto& entry) {
    const VersionState& version = entry.second;
    return version.phase == Phase::kPending && MayReachPeer(job, version) &&
           version.parity_held_at(Tier::kMemory) == members;
  });
}

}  // namespace holdfast::coord
