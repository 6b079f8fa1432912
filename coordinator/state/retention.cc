#include <algorithm>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// Retention: which versions are kept, and the removal of the others. The newest restorable version
// is never removed.

namespace holdfast::coord {
namespace {
// How many versions committed only in memory keep their records, since they may still reach disk.
constexpr size_t kMemoryRecordsMax = 128;
constexpr size_t kAbortedMax = 64;
}  // namespace

/// Returns the versions that no retention rule may remove.
std::set<VersionId> State::ProtectedVersions(const Job& job) const {
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
  // The newest version whose disks survive the loss of a node: newer ones may still lack parity.
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

void State::Retain(Job& job) {
  if (job.retention_due && BarrierOpen(job)) {
    const std::set<VersionId> keep = ProtectedVersions(job);
    RetainDisk(job, keep);
    RetainMemory(job, keep);
    job.retention_due = false;
  }
  EraseRemoved(job);
  PruneAborted(job);
}

void State::RetainDisk(Job& job, const std::set<VersionId>& keep) {
  // Abandoned versions do not count, but stay until enough newer versions are on disk.
  VersionId oldest_kept;
  const uint64_t keep_last = job.keep_last != 0 ? job.keep_last : options_.keep_last;
  const uint64_t keep_every = job.keep_last != 0 ? job.keep_every : options_.keep_every;
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
    Tombstone(job, version);
  }
}

void State::RetainMemory(Job& job, const std::set<VersionId>& keep) {
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
  for (VersionId id : erased) EraseRecord(job, job.versions.at(id));
}

void State::Tombstone(Job& job, VersionState& version) {
  version.phase = Phase::kRemoving;
  Store(job, version, 0);
  version.ForEachReplica([&](const Replica& replica) {
    if (replica.tier == Tier::kDisk) job.remove_disk.insert({replica.node, version.id});
  });
}

/// Erases a version and its record. Replicas that are reported later are recognized as dead.
void State::EraseRecord(Job& job, VersionState& version) {
  std::set<NodeIndex> in_memory;
  version.ForEachReplica([&](const Replica& replica) {
    if (replica.tier == Tier::kDisk) job.remove_disk.insert({replica.node, version.id});
    if (replica.tier == Tier::kMemory) in_memory.insert(replica.node);
  });
  if (IsAbandoned(job, version.id)) {
    for (NodeIndex node : in_memory) {
      SendDirective(node, RemoveVersion{job.name, version.id, Tier::kMemory});
    }
  }
  if (version.recorded) effects_.emplace_back(EraseVersion{job.name, version.id});
  job.versions.erase(version.id);
}

void State::EraseRemoved(Job& job) {
  std::vector<VersionId> removed;
  for (const auto& [id, version] : job.versions) {
    if (version.phase == Phase::kRemoving && !version.any_on_disk()) removed.push_back(id);
  }
  for (VersionId id : removed) EraseRecord(job, job.versions.at(id));
}

void State::PruneAborted(Job& job) {
  const VersionId newest = NewestCommitted(job, Tier::kMemory);
  std::vector<VersionId> aborted;
  for (const auto& [id, version] : job.versions) {
    if (version.phase == Phase::kAborted) aborted.push_back(id);
  }
  size_t left = aborted.size();
  for (VersionId id : aborted) {
    VersionState& version = job.versions.at(id);
    const bool settled = id < newest && !version.any_on_disk();
    // Nodes free an aborted version in memory when the job state lists it, so it stays listed until
    // they have: without that slot, newer versions might never be committed.
    if (!settled && (left <= kAbortedMax || version.any_in_memory())) continue;
    --left;
    if (!settled && id.incarnation == job.incarnation && id.step > job.abort_floor) {
      job.abort_floor = id.step;
      for (auto& [other, pending] : job.versions) {
        if (other < id && pending.phase == Phase::kPending) Abort(job, pending, false);
      }
      effects_.emplace_back(PutJob{RecordOf(job)});
    }
    EraseRecord(job, version);
  }
}

}  // namespace holdfast::coord
