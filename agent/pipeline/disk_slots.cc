#include "agent/pipeline/disk_slots.h"

#include <algorithm>

namespace holdfast::agent {

std::vector<DiskCandidate> DiskSlots::DiskCandidates() const {
  const bool parity = IsParity(table_.segment.owner().rank);
  std::vector<DiskCandidate> candidates;
  for (uint32_t slot = 0; slot < table_.entries.size(); ++slot) {
    const SlotTable::Entry& entry = table_.entries[slot];
    if (entry.disk != SlotTable::Disk::kNone || entry.discard || !entry.given_up.ok()) continue;
    if (table_.IsOfOtherLife(entry) || table_.Aborted(entry.version)) continue;
    const bool sealed =
        entry.phase == SlotTable::Phase::kSealed && entry.verified && !entry.damaged;
    const bool copying = entry.phase == SlotTable::Phase::kCopying;
    if (sealed || copying) candidates.push_back({slot, entry.version, parity});
  }
  return candidates;
}

/// Returns a slot of another life that is not on disk yet. Such slots are written regardless of the
/// pace.
std::optional<uint32_t> DiskSlots::OtherLifeForDisk() const {
  for (uint32_t slot = 0; slot < table_.entries.size(); ++slot) {
    const SlotTable::Entry& entry = table_.entries[slot];
    const bool intact =
        entry.phase == SlotTable::Phase::kSealed && entry.verified && !entry.damaged;
    if (intact && !entry.discard && entry.disk == SlotTable::Disk::kNone &&
        table_.IsOfOtherLife(entry)) {
      return slot;
    }
  }
  return std::nullopt;
}

std::optional<SaveJob> DiskSlots::TakeDisk() {
  MutexLock lock(table_.mutex);
  for (;;) {
    if (table_.Stopped()) return std::nullopt;
    // A version that the coordinator names for all ranks comes before those of the target.
    std::optional<uint32_t> slot;
    if (table_.job_state && table_.job_state->flush) slot = ToFlush();
    if (!slot) slot = table_.pace.Choose(DiskCandidates(), table_.job());
    if (!slot) slot = ToFlush();
    if (!slot) slot = OtherLifeForDisk();
    if (slot) {
      SlotTable::Entry& entry = table_.entries[*slot];
      HOLDFAST_INVARIANT(table_.segment.invariants(),
                         entry.disk == SlotTable::Disk::kNone && !entry.discard, Kv("slot", *slot),
                         Kv("version", ToString(entry.version)));
      entry.disk = SlotTable::Disk::kWriting;
      ++entry.users;
      return table_.JobOf(*slot);
    }
    table_.changed.Wait(table_.mutex);
  }
}

std::optional<VersionId> DiskSlots::VersionToFlush() const {
  if (!table_.job_state) return std::nullopt;
  if (table_.job_state->flush) return table_.job_state->flush;
  return flushing_ ? table_.job_state->committed[Tier::kMemory] : std::nullopt;
}

std::optional<uint32_t> DiskSlots::ToFlush() const {
  const std::optional<VersionId> wanted = VersionToFlush();
  if (!wanted) return std::nullopt;
  for (const DiskCandidate& candidate : DiskCandidates()) {
    const bool sealed = table_.entries[candidate.slot].phase == SlotTable::Phase::kSealed;
    if (sealed && candidate.version == *wanted) return candidate.slot;
  }
  return std::nullopt;
}

DiskSlots::Progress DiskSlots::progress() const {
  MutexLock lock(table_.mutex);
  Progress progress;
  progress.writing = !IsFlushed();
  const JobState* job = table_.job();
  for (const SlotTable::Entry& entry : table_.entries) {
    if (entry.IsSaving()) {
      progress.saving = std::max(progress.saving, std::optional(entry.version));
    }
    const bool sealed = entry.phase == SlotTable::Phase::kSealed && !entry.discard &&
                        !table_.Aborted(entry.version) && !table_.IsOfOtherLife(entry);
    const bool current = job != nullptr && entry.version.incarnation == job->incarnation;
    if (sealed && current) {
      progress.sealed = std::max(progress.sealed, std::optional(entry.version));
    }
  }
  if (job == nullptr) return progress;
  progress.memory = job->committed[Tier::kMemory];
  progress.disk = job->committed[Tier::kDisk];
  progress.shared = job->committed[Tier::kRemote];
  progress.flush = job->flush;
  return progress;
}

void DiskSlots::StartFlush() {
  MutexLock lock(table_.mutex);
  flushing_ = true;
  table_.changed.NotifyAll();
}

bool DiskSlots::AwaitFlushed(Clock::TimePoint deadline) {
  MutexLock lock(table_.mutex);
  while (!IsFlushed()) {
    if (!table_.changed.WaitUntil(table_.mutex, deadline)) return IsFlushed();
  }
  return true;
}

bool DiskSlots::IsFlushed() const {
  if (ToFlush()) return false;
  if (!table_.job_state) return true;
  const std::optional<VersionId> newest = VersionToFlush();
  return std::none_of(table_.entries.begin(), table_.entries.end(),
                      [&](const SlotTable::Entry& entry) {
                        return entry.disk == SlotTable::Disk::kWriting && entry.version == newest;
                      });
}

DiskSlots::DiskFollow DiskSlots::AwaitChecksummed(uint32_t slot, uint64_t seen) {
  MutexLock lock(table_.mutex);
  for (;;) {
    const SlotTable::Entry& entry = table_.entries[slot];
    DiskFollow follow;
    follow.checksummed = entry.checksummed;
    follow.sealed = entry.phase == SlotTable::Phase::kSealed;
    follow.given_up = table_.Stopped() || !entry.given_up.ok();
    if (follow.sealed || follow.given_up || follow.checksummed > seen) return follow;
    table_.changed.Wait(table_.mutex);
  }
}

void DiskSlots::FinishDisk(const SaveJob& job, bool given_up) {
  MutexLock lock(table_.mutex);
  const SlotTable::Entry& entry = table_.entries[job.slot];
  HOLDFAST_INVARIANT(
      table_.segment.invariants(),
      entry.disk == SlotTable::Disk::kWriting && entry.version == job.identity.version,
      Kv("slot", job.slot), Kv("written", ToString(job.identity.version)),
      Kv("found", ToString(entry.version)));
  if (given_up) table_.pace.GiveUp(job.identity.version);
  table_.entries[job.slot].disk = SlotTable::Disk::kDone;
  table_.Release(job.slot);
}

}  // namespace holdfast::agent
