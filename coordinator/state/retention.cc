#include "coordinator/state/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "coordinator/state/invariants.h"
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
  std::set<VersionId> keep;
  const auto protect = [&keep](const std::optional<VersionId>& version) {
    if (version) keep.insert(*version);
  };
  protect(NewestRestorable(job));
  protect(PeerFloor(job));
  for (const TierTraits& traits : kTierTable) {
    if (HasReplicas(traits.tier)) protect(NewestCommitted(job, traits.tier));
    protect(job.copies[traits.tier].version);
  }
  if (job.lineage().decision == Decision::kNone || job.plan.is_awaited()) {
    protect(job.plan.candidate);
  }
  protect(job.plan.rolled_back_to);
  for (const RestoreWaiter& waiter : job.plan.rollbacks) {
    protect(waiter.wanted);
  }
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
  // Versions that other nodes copy from a drained node.
  for (const auto& [key, repair] : job.repairs) {
    const bool copies = key.tier == Tier::kDisk && repair.attempts == 0 &&
                        job.groups_of(key.version.incarnation) == nullptr;
    if (copies) keep.insert(key.version);
  }
  // The version that the current incarnation restored, until a newer one is at least as safe.
  const LineageRecord& lineage = job.lineage();
  auto restored = job.versions.find(lineage.restored);
  if (lineage.decision == Decision::kVersion && restored != job.versions.end()) {
    const bool stored = restored->second.committed_stored();
    bool replaced = false;
    for (auto it = job.versions.lower_bound({job.incarnation, Step{0}}); it != job.versions.end();
         ++it) {
      replaced = replaced || (stored ? it->second.committed_stored() : it->second.committed());
    }
    if (!replaced) keep.insert(restored->first);
  }
  return keep;
}

void Tombstone(Context& context, Job& job, VersionState& version) {
  HOLDFAST_INVARIANT(*context.options.invariants, !version.pinned && version.committed(),
                     Kv("job", job.name), Kv("version", ToString(version.id)),
                     Kv("pinned", version.pinned));
  version.phase = Phase::kRemoving;
  StoreVersion(context, job, version, 0);
  RemoveStored(job, version, kStoredTiers);
}

/// Removes the version from some of the tiers that it is committed at. Replicas that are reported
/// there later are removed, too.
void DropTiers(Context& context, Job& job, VersionState& version, uint32_t tiers) {
  RemoveStored(job, version, tiers);
  version.RemoveReplicasIf(
      [tiers](const Replica& replica) { return (tiers & TierBit(replica.tier)) != 0; });
  version.tiers &= ~tiers;
  version.failed_tiers |= tiers;
  version.fully_available.reset();
  StoreVersion(context, job, version, 0);
}

/// Erases a version and its record. Replicas that are reported later are recognized as dead.
void EraseRecord(Context& context, Job& job, VersionState& version) {
  HOLDFAST_INVARIANT(*context.options.invariants, !(version.committed() && version.pinned),
                     Kv("job", job.name), Kv("version", ToString(version.id)));
  std::set<NodeIndex> in_memory;
  version.ForEachReplica([&](const Replica& replica) {
    if (replica.tier == Tier::kMemory) in_memory.insert(replica.node);
  });
  RemoveStored(job, version, kStoredTiers);
  if (IsAbandoned(job, version.id)) {
    for (NodeIndex node : in_memory) {
      SendDirective(context, node, RemoveVersion{job.name, version.id, Tier::kMemory});
    }
  }
  if (version.recorded) context.effects.emplace_back(EraseVersion{job.name, version.id});
  job.versions.erase(version.id);
}

RetentionRule RuleOf(const Context& context, const Job& job, Tier tier) {
  if (TraitsOf(tier).pace == TierPace::kCopy) return context.options.copies[tier].retention;
  if (job.keep_last != 0) return {job.keep_last, job.keep_every};
  return {context.options.keep_last, context.options.keep_every};
}

/// Returns the versions at the tier that its rule does not keep.
std::vector<VersionId> SurplusAt(const Context& context, const Job& job, Tier tier,
                                 const std::set<VersionId>& keep) {
  // Abandoned versions do not count, but stay until enough newer versions are at the tier.
  const RetentionRule rule = RuleOf(context, job, tier);
  VersionId oldest_kept;
  uint64_t count = 0;
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (!it->second.committed_at(tier) || IsAbandoned(job, it->first)) continue;
    oldest_kept = it->first;
    if (++count == rule.keep_last) break;
  }
  std::vector<VersionId> surplus;
  if (count < rule.keep_last) return surplus;
  for (const auto& [id, version] : job.versions) {
    if (id >= oldest_kept) break;
    if (!version.committed_at(tier) || version.pinned || keep.count(id) != 0) continue;
    const bool every = rule.keep_every != 0 && id.step.value % rule.keep_every == 0;
    if (!every || IsAbandoned(job, id)) surplus.push_back(id);
  }
  return surplus;
}

void RetainStored(Context& context, Job& job, const std::set<VersionId>& keep) {
  std::map<VersionId, uint32_t> surplus;  // mask of TierBit
  for (const TierTraits& traits : kTierTable) {
    if (!IsStored(traits.tier)) continue;
    for (VersionId id : SurplusAt(context, job, traits.tier, keep)) {
      surplus[id] |= TierBit(traits.tier);
    }
  }
  for (const auto& [id, tiers] : surplus) {
    VersionState& version = job.versions.at(id);
    if ((version.tiers & kStoredTiers & ~tiers) == 0) {
      Tombstone(context, job, version);
    } else {
      DropTiers(context, job, version, tiers);
    }
  }
}

void RetainMemory(Context& context, Job& job, const std::set<VersionId>& keep) {
  const auto newest = NewestCommitted(job, Tier::kMemory);
  std::optional<VersionId> newest_stored;
  for (const TierTraits& traits : kTierTable) {
    if (!IsStored(traits.tier)) continue;
    newest_stored = std::max(newest_stored, NewestCommitted(job, traits.tier));
  }
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
    if (version.committed_stored()) continue;
    const bool never_on_disk = (version.failed_tiers & TierBit(Tier::kDisk)) != 0;
    const bool on_its_way =
        on_disk != 0 || SelectsVersion(job, job.targets[Tier::kDisk], id) ||
        (to_peers && (version.any_parity() || SelectsVersion(job, job.targets[Tier::kPeer], id)));
    const bool surplus = ++waiting > kMemoryRecordsMax && !on_its_way;
    const bool superseded = (id < newest_stored || never_on_disk) && !to_peers;
    if (IsAbandoned(job, id) || superseded || surplus) erased.push_back(id);
  }
  for (VersionId id : erased) EraseRecord(context, job, job.versions.at(id));
}

void EraseRemoved(Context& context, Job& job) {
  std::vector<VersionId> removed;
  for (const auto& [id, version] : job.versions) {
    if (version.phase != Phase::kRemoving) continue;
    // No node that reaches the tier was attached when the version became due.
    RemoveStored(job, version, kSharedTiers);
    if (!version.any_stored()) removed.push_back(id);
  }
  for (VersionId id : removed) EraseRecord(context, job, job.versions.at(id));
}

void PruneAborted(Context& context, Job& job) {
  const auto newest = NewestCommitted(job, Tier::kMemory);
  std::vector<VersionId> aborted;
  for (const auto& [id, version] : job.versions) {
    if (version.phase == Phase::kAborted) aborted.push_back(id);
  }
  size_t left = aborted.size();
  for (VersionId id : aborted) {
    VersionState& version = job.versions.at(id);
    const bool settled = id < newest && !version.any_stored();
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
    const auto floor = NewestRestorable(job);
    RetainStored(context, job, keep);
    RetainMemory(context, job, keep);
    CheckRetention(context, job, floor);
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
  const auto wanted = event.version ? event.version : NewestCommitted(job, Tier::kDisk);
  VersionState* version = job.FindVersion(wanted);
  if (version == nullptr || !version->committed()) {
    return Answer(
        context, event.request,
        NotFoundError(event.version ? fmt::format("job {} has no committed version {}", event.job,
                                                  ToString(*wanted))
                                    : fmt::format("job {} has no version on disk yet", event.job)));
  }
  if (event.pinned && !version->committed_at(Tier::kDisk)) {
    return Answer(context, event.request,
                  FailedPreconditionError(fmt::format(
                      "version {} is not on disk yet; only versions on disk can be pinned",
                      ToString(*wanted))));
  }
  if (version->pinned != event.pinned) {
    version->pinned = event.pinned;
    StoreVersion(context, job, *version, 0);
    job.retention_due = true;
    job.changed = true;
  }
  Reply reply;
  reply.version = *wanted;
  Answer(context, event.request, std::move(reply));
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
