#include "coordinator/state/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "coordinator/state/restore_plan.h"
#include "coordinator/state/survivability.h"
#include "coordinator/state/targets.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
// How many versions that are committed only in memory keep their records, since they may still
// reach disk.
constexpr size_t kMemoryRecordsMax = 128;
constexpr size_t kAbortedMax = 64;

/// Returns the versions that no retention rule may remove.
std::set<VersionId> ProtectedVersions(const Job& job) {
  std::set<VersionId> keep = {NewestRestorable(job), NewestCommitted(job, Tier::kMemory),
                              NewestCommitted(job, Tier::kDisk), PeerFloor(job)};
  if (job.lineage().decision == Decision::kNone || !job.plan.waiters.empty()) {
    keep.insert(job.plan.candidate);
  }
  keep.insert(job.plan.rolled_back_to);
  for (const RestoreWaiter& waiter : job.plan.rollbacks) keep.insert(waiter.wanted);
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    const VersionState& version = it->second;
    if (version.committed_at(Tier::kDisk) && version.held_at(Tier::kDisk) == version.world &&
        !IsAbandoned(job, it->first)) {
      keep.insert(it->first);
      break;
    }
  }
  // The newest version that the disks alone can restore after the loss of a node: newer ones may
  // still lack parity on disk.
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    const VersionState& version = it->second;
    if (!version.committed_at(Tier::kDisk) || IsAbandoned(job, it->first)) continue;
    if (PeerMargin(job, version, TierBit(Tier::kDisk)).value_or(0) == 0) continue;
    keep.insert(it->first);
    break;
  }
  // The version that the current incarnation restored, until a newer one is at least as safe.
  const LineageRecord& lineage = job.lineage();
  auto restored = job.versions.find(lineage.restored);
  if (lineage.decision == Decision::kVersion && restored != job.versions.end()) {
    const bool on_disk = restored->second.committed_at(Tier::kDisk);
    bool replaced = false;
    for (auto it = job.versions.lower_bound({job.incarnation, Step{0}}); it != job.versions.end();
         ++it) {
      replaced =
          replaced || (on_disk ? it->second.committed_at(Tier::kDisk) : it->second.committed());
    }
    if (!replaced) keep.insert(restored->first);
  }
  return keep;
}

void Tombstone(Context& context, Job& job, VersionState& version) {
  version.phase = Phase::kRemoving;
  StoreVersion(context, job, version, 0);
  version.ForEachReplica([&](const Replica& replica) {
    if (replica.tier == Tier::kDisk) job.remove_disk.insert({replica.node, version.id});
  });
}

/// Erases a version and its record. Replicas that are reported later are recognized as dead.
void EraseRecord(Context& context, Job& job, VersionState& version) {
  std::set<NodeIndex> in_memory;
  version.ForEachReplica([&](const Replica& replica) {
    if (replica.tier == Tier::kDisk) job.remove_disk.insert({replica.node, version.id});
    if (replica.tier == Tier::kMemory) in_memory.insert(replica.node);
  });
  if (IsAbandoned(job, version.id)) {
    for (NodeIndex node : in_memory) {
      SendDirective(context, node, RemoveVersion{job.name, version.id, Tier::kMemory});
    }
  }
  if (version.recorded) context.effects.emplace_back(EraseVersion{job.name, version.id});
  job.versions.erase(version.id);
}

void RetainDisk(Context& context, Job& job, const std::set<VersionId>& keep) {
  // Abandoned versions do not count, but stay until enough newer versions are on disk.
  VersionId oldest_kept;
  const uint64_t keep_last = job.keep_last != 0 ? job.keep_last : context.options.keep_last;
  const uint64_t keep_every = job.keep_last != 0 ? job.keep_every : context.options.keep_every;
  uint64_t count = 0;
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (!it->second.committed_at(Tier::kDisk) || IsAbandoned(job, it->first)) continue;
    oldest_kept = it->first;
    if (++count == keep_last) break;
  }
  if (count < keep_last) return;
  for (auto& [id, version] : job.versions) {
    if (id >= oldest_kept) break;
    if (!version.committed_at(Tier::kDisk) || version.pinned || keep.count(id) != 0) continue;
    const bool every = keep_every != 0 && id.step.value % keep_every == 0;
    if (every && !IsAbandoned(job, id)) continue;
    Tombstone(context, job, version);
  }
}

void RetainMemory(Context& context, Job& job, const std::set<VersionId>& keep) {
  const VersionId newest = NewestCommitted(job, Tier::kMemory);
  const VersionId newest_disk = NewestCommitted(job, Tier::kDisk);
  std::vector<VersionId> erased;
  size_t waiting = 0;
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    auto& [id, version] = *it;
    if (!version.committed() || keep.count(id) != 0) continue;
    const uint32_t on_disk = version.held_at(Tier::kDisk);
    const bool to_peers = MayReachPeer(job, version);
    if (id < newest && (on_disk == 0 || on_disk == version.world) && !to_peers) {
      // Agents free these slots without a directive once a newer version is committed in memory.
      version.RemoveReplicasIf(
          [](const Replica& replica) { return replica.tier == Tier::kMemory; });
    }
    if (version.committed_at(Tier::kDisk)) continue;
    const bool never_on_disk = (version.failed_tiers & TierBit(Tier::kDisk)) != 0;
    const bool on_its_way =
        on_disk != 0 || SelectsVersion(job, job.disk_target, id) ||
        (to_peers && (version.any_parity() || SelectsVersion(job, job.peer_target, id)));
    const bool surplus = ++waiting > kMemoryRecordsMax && !on_its_way;
    const bool superseded = (id < newest_disk || never_on_disk) && !to_peers;
    if (IsAbandoned(job, id) || superseded || surplus) erased.push_back(id);
  }
  for (VersionId id : erased) EraseRecord(context, job, job.versions.at(id));
}

void EraseRemoved(Context& context, Job& job) {
  std::vector<VersionId> removed;
  for (const auto& [id, version] : job.versions) {
    if (version.phase == Phase::kRemoving && !version.any_on_disk()) removed.push_back(id);
  }
  for (VersionId id : removed) EraseRecord(context, job, job.versions.at(id));
}

void PruneAborted(Context& context, Job& job) {
  const VersionId newest = NewestCommitted(job, Tier::kMemory);
  std::vector<VersionId> aborted;
  for (const auto& [id, version] : job.versions) {
    if (version.phase == Phase::kAborted) aborted.push_back(id);
  }
  size_t left = aborted.size();
  for (VersionId id : aborted) {
    VersionState& version = job.versions.at(id);
    const bool settled = id < newest && !version.any_on_disk();
    // Nodes free the slots of an aborted version when the job state lists it, so the version stays
    // listed until they have done so: without these slots, newer versions might never be committed.
    if (!settled && (left <= kAbortedMax || version.any_in_memory())) continue;
    --left;
    if (!settled && id.incarnation == job.incarnation && id.step > job.abort_floor) {
      job.abort_floor = id.step;
      for (auto& [other, pending] : job.versions) {
        if (other < id && pending.phase == Phase::kPending) {
          AbortVersion(context, job, pending, false);
        }
      }
      StoreJob(context, job);
    }
    EraseRecord(context, job, version);
  }
}
}  // namespace

void ApplyRetention(Context& context, Job& job) {
  if (job.retention_due && BarrierOpen(context, job)) {
    const std::set<VersionId> keep = ProtectedVersions(job);
    RetainDisk(context, job, keep);
    RetainMemory(context, job, keep);
    job.retention_due = false;
  }
  EraseRemoved(context, job);
  PruneAborted(context, job);
}

void OnPinSet(Context& context, const PinSet& event) {
  auto found = context.cluster.jobs.find(event.job);
  if (found == context.cluster.jobs.end()) {
    return Answer(context, event.request, NotFoundError(fmt::format("no job '{}'", event.job)));
  }
  Job& job = found->second;
  const bool newest = event.version.incarnation.value == 0;
  const VersionId wanted = newest ? NewestCommitted(job, Tier::kDisk) : event.version;
  auto version = job.versions.find(wanted);
  if (version == job.versions.end() || !version->second.committed()) {
    return Answer(context, event.request,
                  NotFoundError(newest ? fmt::format("job {} has no version on disk yet", event.job)
                                       : fmt::format("job {} has no committed version {}",
                                                     event.job, ToString(wanted))));
  }
  if (event.pinned && !version->second.committed_at(Tier::kDisk)) {
    return Answer(context, event.request,
                  FailedPreconditionError(fmt::format(
                      "version {} is not on disk yet; only versions on disk can be pinned",
                      ToString(wanted))));
  }
  if (version->second.pinned != event.pinned) {
    version->second.pinned = event.pinned;
    StoreVersion(context, job, version->second, 0);
    job.retention_due = true;
    job.changed = true;
  }
  if (event.request == 0) return;
  Reply reply;
  reply.request = event.request;
  reply.version = wanted;
  context.effects.emplace_back(std::move(reply));
}

void OnRetentionSet(Context& context, const RetentionSet& event) {
  auto found = context.cluster.jobs.find(event.job);
  if (found == context.cluster.jobs.end()) {
    return Answer(context, event.request, NotFoundError(fmt::format("no job '{}'", event.job)));
  }
  Job& job = found->second;
  job.keep_last = event.keep_last;
  job.keep_every = event.keep_last == 0 ? 0 : event.keep_every;
  job.retention_due = true;
  job.changed = true;
  StoreJob(context, job);
  Answer(context, event.request, Status::Ok());
}

}  // namespace holdfast::coord
