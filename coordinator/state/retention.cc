#include <algorithm>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// Which versions stay, and the end of those that do not. Never the newest restorable.

namespace holdfast::coord {
namespace {
// Versions that were committed in memory wait this many newer ones for the disk to follow.
constexpr size_t kMemoryRecordsMax = 128;
constexpr size_t kAbortedMax = 64;
}  // namespace

/// Versions that no rule may take.
std::set<VersionId> State::Guarded(const Job& job) const {
  std::set<VersionId> guarded = {NewestRestorable(job), NewestCommitted(job, Tier::kMemory),
                                 NewestCommitted(job, Tier::kDisk), PeerFloor(job)};
  if (job.lineage().decision == Decision::kNone || !job.plan.asks.empty()) {
    guarded.insert(job.plan.candidate);
  }
  guarded.insert(job.plan.rolled_back_to);
  for (const RestoreAsk& ask : job.plan.rollbacks) guarded.insert(ask.wanted);
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    const VersionState& version = it->second;
    if (version.committed_at(Tier::kDisk) && version.held_at(Tier::kDisk) == version.world &&
        !IsAbandoned(job, it->first)) {
      guarded.insert(it->first);
      break;
    }
  }
  // The newest that the disks have even without a node, when what is newer is still without parity.
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    const VersionState& version = it->second;
    if (!version.committed_at(Tier::kDisk) || IsAbandoned(job, it->first)) continue;
    if (PeerMargin(job, version, TierBit(Tier::kDisk)).value_or(0) == 0) continue;
    guarded.insert(it->first);
    break;
  }
  // What the current incarnation restored, until it has something newer that is at least as safe.
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
    if (!replaced) guarded.insert(restored->first);
  }
  return guarded;
}

void State::Retain(Job& job) {
  if (job.retention_due && GateOpen(job)) {
    const std::set<VersionId> guarded = Guarded(job);
    RetainDisk(job, guarded);
    RetainMemory(job, guarded);
    job.retention_due = false;
  }
  EraseGone(job);
  PruneAborted(job);
}

void State::RetainDisk(Job& job, const std::set<VersionId>& guarded) {
  // Abandoned versions do not count, but stay until enough newer ones are there.
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
    if (!version.committed_at(Tier::kDisk) || version.pinned || guarded.count(id) != 0) continue;
    const bool every = keep_every != 0 && id.step.value % keep_every == 0;
    if (every && !IsAbandoned(job, id)) continue;
    Tombstone(job, version);
  }
}

void State::RetainMemory(Job& job, const std::set<VersionId>& guarded) {
  const VersionId newest = NewestCommitted(job, Tier::kMemory);
  const VersionId newest_disk = NewestCommitted(job, Tier::kDisk);
  std::vector<VersionId> erased;
  size_t waiting = 0;
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    auto& [id, version] = *it;
    if (!version.committed() || guarded.count(id) != 0) continue;
    const uint32_t on_disk = version.held_at(Tier::kDisk);
    const bool to_peers = IsOnItsWayToPeer(job, version);
    if (id < newest && (on_disk == 0 || on_disk == version.world) && !to_peers) {
      // Agents free these slots by themselves now that a newer version is safe.
      version.RemoveCopiesIf([](const Copy& copy) { return copy.tier == Tier::kMemory; });
    }
    if (version.committed_at(Tier::kDisk)) continue;
    const bool never_on_disk = (version.failed_tiers & TierBit(Tier::kDisk)) != 0;
    const bool on_its_way =
        on_disk != 0 || LeadsTo(job, job.disk_target, id) ||
        (to_peers && (version.any_parity() || LeadsTo(job, job.peer_target, id)));
    const bool surplus = ++waiting > kMemoryRecordsMax && !on_its_way;
    const bool overtaken = (id < newest_disk || never_on_disk) && !to_peers;
    if (IsAbandoned(job, id) || overtaken || surplus) erased.push_back(id);
  }
  for (VersionId id : erased) EraseRecord(job, job.versions.at(id));
}

void State::Tombstone(Job& job, VersionState& version) {
  version.phase = Phase::kRemoving;
  Store(job, version, 0);
  version.ForEachCopy([&](const Copy& copy) {
    if (copy.tier == Tier::kDisk) job.remove_disk.insert({copy.node, version.id});
  });
}

/// Forgets a version; whatever still turns up of it is known to be dead.
void State::EraseRecord(Job& job, VersionState& version) {
  std::set<NodeIndex> in_memory;
  version.ForEachCopy([&](const Copy& copy) {
    if (copy.tier == Tier::kDisk) job.remove_disk.insert({copy.node, version.id});
    if (copy.tier == Tier::kMemory) in_memory.insert(copy.node);
  });
  if (IsAbandoned(job, version.id)) {
    for (NodeIndex node : in_memory) Say(node, RemoveOrder{job.name, version.id, Tier::kMemory});
  }
  if (version.recorded) effects_.emplace_back(EraseVersion{job.name, version.id});
  job.versions.erase(version.id);
}

void State::EraseGone(Job& job) {
  std::vector<VersionId> gone;
  for (const auto& [id, version] : job.versions) {
    if (version.phase == Phase::kRemoving && !version.any_on_disk()) gone.push_back(id);
  }
  for (VersionId id : gone) EraseRecord(job, job.versions.at(id));
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
    // Whoever has it in memory frees it when told, and is told until then: nothing newer may ever
    // be committed without that slot.
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
