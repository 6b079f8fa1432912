#include "agent/pipeline/slot_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

namespace holdfast::agent {

SlotTable::SlotTable(Segment& segment_in, uint64_t disk_every_steps, uint64_t peer_every_steps,
                     ChangeSignal& peer_versions_in)
    : segment(segment_in),
      entries(segment.slot_count()),
      pace(disk_every_steps),
      peer_every(std::max<uint64_t>(peer_every_steps, 1)),
      peer_versions(peer_versions_in) {
  for (uint32_t slot = 0; slot < segment.slot_count(); ++slot) {
    const SlotRecord record = segment.record(slot);
    if (record.state != SlotState::kSealed) continue;
    HOLDFAST_INVARIANT(segment.invariants(), record.image_bytes <= segment.slot_bytes(),
                       Kv("slot", slot), Kv("bytes", record.image_bytes));
    Entry& entry = entries[slot];
    entry.phase = Phase::kSealed;
    entry.version = record.version;
    entry.world = record.world;
    entry.image_bytes = record.image_bytes;
    entry.checksummed = record.image_bytes;
    entry.life = record.life;
    newest_sealed = std::max(newest_sealed, record.version);
  }
}

bool SlotTable::IsOfOtherLife(const Entry& entry) const {
  const LifeId sealed_in = entry.life.value != 0 ? entry.life : unlabeled;
  return life.value != 0 && sealed_in.value != 0 && sealed_in != life;
}

/// Returns the slots that may be freed. For the restore of a parity shard (`for_restore`), these
/// include older parity versions that are not committed at peer: the restored version replaces
/// them.
std::vector<uint32_t> SlotTable::Freeable(VersionId for_restore) const {
  const std::vector<SlotInfo> slots = Infos();
  std::vector<uint32_t> freeable = FreeableSlots(slots, job());
  if (!freeable.empty() || job() == nullptr || !IsParity(segment.owner().rank)) return freeable;
  for (const SlotInfo& slot : slots) {
    if (slot.state != SlotState::kSealed || slot.in_use || slot.held) continue;
    // An operator may adopt the version of another life. Its parity stays until it is on disk.
    if (slot.other_life && !slot.disk_done) continue;
    if (slot.version >= for_restore || slot.version == job()->committed[Tier::kPeer]) continue;
    freeable.push_back(slot.slot);
  }
  return freeable;
}

Result<uint32_t> SlotTable::Lease(VersionId version, uint32_t world, uint64_t image_bytes,
                                  std::vector<FreedSlot>* freed, bool restore) {
  HOLDFAST_RETURN_IF_ERROR(segment.invariants().error());
  auto slot = segment.Lease(version, world, image_bytes);
  if (!slot && slot.error().code() == ErrorCode::kResourceExhausted) {
    const std::vector<uint32_t> freeable = Freeable(restore ? version : VersionId{});
    if (freeable.empty()) {
      return Fail({ErrorCode::kResourceExhausted,
                   fmt::format("all {} slots are in use: each is being written, or has a version "
                               "that no newer commit has replaced yet",
                               entries.size())});
    }
    Entry& oldest = entries[freeable.front()];
    const bool unwritten = oldest.disk == Disk::kNone && oldest.verified;
    const bool missed = unwritten && pace.IsEligible(oldest.version, job());
    HOLDFAST_INVARIANT(segment.invariants(), oldest.users == 0 && oldest.phase == Phase::kSealed,
                       Kv("slot", freeable.front()), Kv("users", oldest.users));
    // Until a newer version is committed, a restart needs this one.
    const bool needed = job() != nullptr && job()->committed[Tier::kMemory] == oldest.version &&
                        !Aborted(oldest.version) && !IsParity(segment.owner().rank);
    HOLDFAST_INVARIANT(segment.invariants(), !needed, Kv("slot", freeable.front()),
                       Kv("version", ToString(oldest.version)));
    HOLDFAST_RETURN_IF_ERROR(segment.invariants().error());
    HOLDFAST_RETURN_IF_ERROR(segment.Free(freeable.front()));
    freed->push_back({oldest.version, missed, unwritten && pace.IsOnInterval(oldest.version)});
    oldest = Entry{};
    slot = segment.Lease(version, world, image_bytes);
  }
  if (!slot) return slot;
  if (!HOLDFAST_INVARIANT(segment.invariants(), *slot < entries.size(), Kv("slot", *slot))) {
    return Fail(segment.invariants().error());
  }
  Entry& entry = entries[*slot];
  // The ledger has the slot as free, so the table must, too.
  HOLDFAST_INVARIANT(segment.invariants(), entry.phase == Phase::kFree && entry.users == 0,
                     Kv("slot", *slot), Kv("users", entry.users),
                     Kv("version", ToString(entry.version)));
  HOLDFAST_RETURN_IF_ERROR(segment.invariants().error());
  entry = Entry{};
  entry.version = version;
  entry.world = world;
  entry.image_bytes = image_bytes;
  entry.life = life;
  return slot;
}

void SlotTable::GiveUp(uint32_t slot, const Status& why) {
  Entry& entry = entries[slot];
  HOLDFAST_INVARIANT(segment.invariants(), entry.phase == Phase::kCopying, Kv("slot", slot));
  if (entry.given_up.ok()) entry.given_up = why;
  FreeIfUnused(slot);
  ChoosePeerVersion();
  changed.NotifyAll();
}

void SlotTable::FreeIfUnused(uint32_t slot) {
  Entry& entry = entries[slot];
  // After a violation the memory stays as it is: it may be needed, and it is evidence.
  if (entry.users > 0 || segment.invariants().violated()) return;
  Status status;
  if (entry.phase == Phase::kCopying && !entry.given_up.ok()) {
    status = segment.Abandon(slot);
  } else if (entry.phase == Phase::kSealed && entry.discard) {
    status = segment.Free(slot);
  } else {
    return;
  }
  if (!status.ok()) {
    Log(LogLevel::kError, "SlotNotFreed", {Kv("slot", slot), Kv("error", status.ToString())});
  }
  entry = Entry{};
  changed.NotifyAll();
}

void SlotTable::Release(uint32_t slot) {
  if (HOLDFAST_INVARIANT(segment.invariants(), entries[slot].users > 0, Kv("slot", slot))) {
    --entries[slot].users;
  }
  FreeIfUnused(slot);
  changed.NotifyAll();
}

std::vector<SlotInfo> SlotTable::Infos() const {
  std::vector<SlotInfo> infos;
  infos.reserve(entries.size());
  for (uint32_t slot = 0; slot < entries.size(); ++slot) {
    const Entry& entry = entries[slot];
    SlotInfo info;
    info.slot = slot;
    info.version = entry.version;
    info.in_use = entry.users > 0 || (entry.phase == Phase::kSealed && !entry.verified);
    info.held = held == entry.version || peer_version == entry.version;
    info.other_life = IsOfOtherLife(entry);
    info.disk_done = entry.disk == Disk::kDone;
    info.parity = IsParity(segment.owner().rank);
    switch (entry.phase) {
      case Phase::kFree:
        info.state = SlotState::kFree;
        break;
      case Phase::kCopying:
      case Phase::kFilling:
        info.state = SlotState::kLeased;
        break;
      case Phase::kSealed:
        info.state = SlotState::kSealed;
        break;
    }
    infos.push_back(info);
  }
  return infos;
}

SaveJob SlotTable::JobOf(uint32_t slot) const {
  const Entry& entry = entries[slot];
  HOLDFAST_INVARIANT(segment.invariants(), entry.phase != Phase::kFree, Kv("slot", slot));
  SaveJob job;
  job.slot = slot;
  job.identity = {segment.owner().job, entry.version, segment.owner().rank, entry.world};
  job.life = entry.life;
  job.image_bytes = entry.image_bytes;
  return job;
}

bool SlotTable::Aborted(VersionId version) const {
  return job_state && std::find(job_state->aborted.begin(), job_state->aborted.end(), version) !=
                          job_state->aborted.end();
}

bool SlotTable::IsEligibleForPeers(VersionId version) const {
  return job_state && job_state->group && version.incarnation == job_state->incarnation &&
         version.step >= job_state->target_step[Tier::kPeer] &&
         version.step.value % peer_every == 0 && !Aborted(version);
}

void SlotTable::ChoosePeerVersion() {
  std::optional<VersionId> first;
  for (const Entry& entry : entries) {
    const bool sealed = entry.phase == Phase::kSealed && entry.verified && !entry.discard;
    const bool copying = entry.IsSaving();
    // The incarnation of another life may have the number of one of this life.
    if ((!sealed && !copying) || IsOfOtherLife(entry) || !IsEligibleForPeers(entry.version)) {
      continue;
    }
    if (!first || entry.version < *first) first = entry.version;
  }
  if (first == peer_version) return;
  peer_version = first;
  if (first) peer_versions.Raise();
}

}  // namespace holdfast::agent
