#include "agent/pipeline/slot_pins.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast::agent {

Result<uint32_t> SlotPins::Pin(VersionId version, Find find) {
  MutexLock lock(table_.mutex);
  HOLDFAST_RETURN_IF_ERROR(table_.segment.invariants().error());
  for (uint32_t slot = 0; slot < table_.entries.size(); ++slot) {
    SlotTable::Entry& entry = table_.entries[slot];
    if (entry.phase != SlotTable::Phase::kSealed || entry.version != version || entry.discard) {
      continue;
    }
    if (entry.damaged && find == Find::kIntact) continue;
    if (!entry.verified && find != Find::kAny) continue;
    // The reader takes the bytes for this version: the ledger must agree.
    const SlotRecord record = table_.segment.record(slot);
    HOLDFAST_INVARIANT(table_.segment.invariants(),
                       record.state == SlotState::kSealed && record.version == version,
                       Kv("slot", slot), Kv("wanted", ToString(version)),
                       Kv("ledger", ToString(record.version)));
    HOLDFAST_RETURN_IF_ERROR(table_.segment.invariants().error());
    ++entry.users;
    return slot;
  }
  return Fail(
      {ErrorCode::kNotFound, fmt::format("version {} of rank {} is not in this node's memory",
                                         ToString(version), table_.segment.owner().rank.value)});
}

void SlotPins::Unpin(uint32_t slot) {
  MutexLock lock(table_.mutex);
  table_.Release(slot);
}

bool SlotPins::StaysAfterUnpin(uint32_t slot) {
  MutexLock lock(table_.mutex);
  return !table_.entries[slot].discard;
}

void SlotPins::Verified(uint32_t slot, bool on_disk) {
  MutexLock lock(table_.mutex);
  HOLDFAST_INVARIANT(
      table_.segment.invariants(),
      table_.entries[slot].phase == SlotTable::Phase::kSealed && table_.entries[slot].users > 0,
      Kv("slot", slot), Kv("users", table_.entries[slot].users));
  table_.entries[slot].verified = true;
  table_.entries[slot].damaged = false;
  if (on_disk) table_.entries[slot].disk = SlotTable::Disk::kDone;
  table_.ChoosePeerVersion();
  table_.changed.NotifyAll();
}

Status SlotPins::MarkDamaged(VersionId version) {
  MutexLock lock(table_.mutex);
  for (SlotTable::Entry& entry : table_.entries) {
    if (entry.phase != SlotTable::Phase::kSealed || entry.version != version) continue;
    if (entry.discard || entry.damaged) continue;
    entry.damaged = true;
    entry.verified = true;  // verification has ended
    return Status::Ok();
  }
  return NotFoundError("memory has no intact replica of version " + ToString(version));
}

Status SlotPins::Discard(VersionId version) {
  MutexLock lock(table_.mutex);
  for (uint32_t slot = 0; slot < table_.entries.size(); ++slot) {
    SlotTable::Entry& entry = table_.entries[slot];
    if (entry.phase != SlotTable::Phase::kSealed || entry.version != version || entry.discard) {
      continue;
    }
    entry.discard = true;
    table_.FreeIfUnused(slot);
    return Status::Ok();
  }
  return Status(ErrorCode::kNotFound, "memory does not have version " + ToString(version));
}

bool SlotView::Has(VersionId version) {
  MutexLock lock(table_.mutex);
  return std::any_of(table_.entries.begin(), table_.entries.end(),
                     [&](const SlotTable::Entry& entry) {
                       return entry.phase == SlotTable::Phase::kSealed &&
                              entry.version == version && !entry.discard;
                     });
}

std::optional<Incarnation> SlotView::Unsealed() {
  MutexLock lock(table_.mutex);
  for (const SlotTable::Entry& entry : table_.entries) {
    const bool saving = entry.IsSaving();
    if (saving || (entry.phase == SlotTable::Phase::kSealed && !entry.verified)) {
      return entry.version.incarnation;
    }
  }
  return std::nullopt;
}

std::vector<SlotStatus> SlotView::Snapshot() {
  MutexLock lock(table_.mutex);
  std::vector<SlotStatus> result;
  for (const SlotInfo& info : table_.Infos()) {
    const SlotTable::Entry& entry = table_.entries[info.slot];
    SlotStatus status;
    status.info = info;
    status.image_bytes = entry.image_bytes;
    status.checksummed = entry.checksummed;
    status.verified = entry.verified && !entry.damaged;
    status.disk = entry.disk == SlotTable::Disk::kNone      ? "none"
                  : entry.disk == SlotTable::Disk::kWriting ? "writing"
                                                            : "done";
    result.push_back(status);
  }
  return result;
}

std::vector<VersionId> SlotView::Kept() {
  MutexLock lock(table_.mutex);
  const std::vector<uint32_t> freeable = FreeableSlots(table_.Infos(), table_.job());
  std::vector<VersionId> kept;
  for (uint32_t slot = 0; slot < table_.entries.size(); ++slot) {
    const SlotTable::Entry& entry = table_.entries[slot];
    const bool sealed = entry.phase == SlotTable::Phase::kSealed && entry.verified &&
                        !entry.damaged && !entry.discard;
    if (sealed && std::find(freeable.begin(), freeable.end(), slot) == freeable.end()) {
      kept.push_back(entry.version);
    }
  }
  return kept;
}

std::vector<std::pair<VersionId, bool>> SlotView::SealedVersions() {
  MutexLock lock(table_.mutex);
  std::vector<std::pair<VersionId, bool>> result;
  for (const SlotTable::Entry& entry : table_.entries) {
    if (entry.phase == SlotTable::Phase::kSealed && !entry.discard) {
      result.emplace_back(entry.version, entry.verified);
    }
  }
  std::sort(result.rbegin(), result.rend());
  return result;
}

}  // namespace holdfast::agent
