#include "agent/pipeline/fill_slots.h"

#include "base/log.h"

namespace holdfast::agent {

Result<uint32_t> FillSlots::LeaseToFill(VersionId version, uint32_t world, uint64_t image_bytes,
                                        std::vector<FreedSlot>* freed) {
  MutexLock lock(table_.mutex);
  HOLDFAST_RETURN_IF_ERROR(table_.segment.invariants().error());
  HOLDFAST_ASSIGN_OR_RETURN(uint32_t slot, table_.Lease(version, world, image_bytes, freed, true));
  table_.entries[slot].phase = SlotTable::Phase::kFilling;
  return slot;
}

Status FillSlots::SealRestored(uint32_t slot, const ShardSeal& seal) {
  MutexLock lock(table_.mutex);
  return SealFilled(slot, seal, SlotTable::Disk::kDone);
}

Status FillSlots::SealBuilt(uint32_t slot, const ShardSeal& seal) {
  MutexLock lock(table_.mutex);
  return SealFilled(slot, seal, SlotTable::Disk::kNone);
}

Status FillSlots::SealFilled(uint32_t slot, const ShardSeal& seal, SlotTable::Disk disk) {
  SlotTable::Entry& entry = table_.entries[slot];
  HOLDFAST_INVARIANT(table_.segment.invariants(), entry.phase == SlotTable::Phase::kFilling,
                     Kv("slot", slot));
  HOLDFAST_INVARIANT(table_.segment.invariants(), seal.identity.version == entry.version,
                     Kv("slot", slot), Kv("seal", ToString(seal.identity.version)),
                     Kv("slot_version", ToString(entry.version)));
  HOLDFAST_RETURN_IF_ERROR(table_.segment.invariants().error());
  HOLDFAST_RETURN_IF_ERROR(table_.segment.Seal(slot, seal));
  HOLDFAST_RETURN_IF_ERROR(table_.segment.invariants().error());
  entry.phase = SlotTable::Phase::kSealed;
  entry.verified = true;
  entry.checksummed = entry.image_bytes;
  entry.disk = disk;
  for (uint32_t other = 0; other < table_.entries.size(); ++other) {
    SlotTable::Entry& old = table_.entries[other];
    if (other == slot || !old.damaged || old.version != entry.version) continue;
    old.discard = true;  // the new slot replaces it
    table_.FreeIfUnused(other);
  }
  table_.changed.NotifyAll();
  return Status::Ok();
}

void FillSlots::DropFilled(uint32_t slot) {
  MutexLock lock(table_.mutex);
  HOLDFAST_INVARIANT(table_.segment.invariants(),
                     table_.entries[slot].phase == SlotTable::Phase::kFilling, Kv("slot", slot));
  if (table_.segment.invariants().violated()) return;
  Status status = table_.segment.Abandon(slot);
  if (!status.ok()) {
    Log(LogLevel::kError, "SlotNotFreed", {Kv("slot", slot), Kv("error", status.ToString())});
  }
  table_.entries[slot] = SlotTable::Entry{};
  table_.changed.NotifyAll();
}

void FillSlots::HoldForRestore(VersionId version) {
  MutexLock lock(table_.mutex);
  table_.held = version;
}

}  // namespace holdfast::agent
