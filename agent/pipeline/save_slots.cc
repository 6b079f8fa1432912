#include "agent/pipeline/save_slots.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast::agent {

Status SaveSlots::CheckNewer(VersionId version) const {
  VersionId newest = table_.newest_sealed;
  if (table_.job_state && table_.job_state->committed[Tier::kMemory])
    newest = std::max(newest, *table_.job_state->committed[Tier::kMemory]);
  for (const SlotTable::Entry& entry : table_.entries) {
    if (entry.IsSaving()) {
      newest = std::max(newest, entry.version);
    }
  }
  if (newest.incarnation != version.incarnation || newest.step < version.step) return Status::Ok();
  if (newest.step == version.step) {
    return Status(ErrorCode::kAlreadyExists,
                  fmt::format("step {} is saved already", version.step.value));
  }
  return Status(
      ErrorCode::kAlreadyExists,
      fmt::format(
          "step {} is not newer than step {}, which this incarnation saved already: its steps "
          "must increase. To go back, restore in a new start of the job (a new run ID)",
          version.step.value, newest.step.value));
}

Result<uint32_t> SaveSlots::BeginSave(VersionId version, uint32_t world, uint64_t image_bytes,
                                      std::vector<FreedSlot>* freed) {
  MutexLock lock(table_.mutex);
  HOLDFAST_RETURN_IF_ERROR(table_.segment.invariants().error());
  HOLDFAST_RETURN_IF_ERROR(CheckNewer(version));
  HOLDFAST_ASSIGN_OR_RETURN(uint32_t slot, table_.Lease(version, world, image_bytes, freed, false));
  table_.entries[slot].phase = SlotTable::Phase::kCopying;
  table_.ChoosePeerVersion();
  table_.changed.NotifyAll();
  return slot;
}

Status SaveSlots::CheckOpenSave(uint32_t slot, VersionId version) const {
  if (slot >= table_.entries.size()) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("slot {} does not exist: this rank has {} slots", slot, table_.entries.size()));
  }
  const SlotTable::Entry& entry = table_.entries[slot];
  if (entry.phase != SlotTable::Phase::kCopying || entry.version != version || entry.ended) {
    return Status(ErrorCode::kFailedPrecondition,
                  fmt::format("slot {} is not being saved as version {}", slot, ToString(version)));
  }
  return entry.given_up;
}

Status SaveSlots::EndSave(uint32_t slot, VersionId version) {
  MutexLock lock(table_.mutex);
  HOLDFAST_RETURN_IF_ERROR(CheckOpenSave(slot, version));
  table_.entries[slot].ended = true;
  table_.changed.NotifyAll();
  return Status::Ok();
}

Status SaveSlots::AbandonSave(uint32_t slot, VersionId version, const Status& why) {
  MutexLock lock(table_.mutex);
  HOLDFAST_RETURN_IF_ERROR(CheckOpenSave(slot, version));
  table_.GiveUp(slot, why);
  return Status::Ok();
}

std::vector<VersionId> SaveSlots::AbortUnended(const Status& why) {
  MutexLock lock(table_.mutex);
  std::vector<VersionId> versions;
  for (uint32_t slot = 0; slot < table_.entries.size(); ++slot) {
    const SlotTable::Entry& entry = table_.entries[slot];
    if (entry.phase != SlotTable::Phase::kCopying || entry.ended || !entry.given_up.ok()) continue;
    versions.push_back(entry.version);
    table_.GiveUp(slot, why);
  }
  return versions;
}

std::vector<VersionId> SaveSlots::AbortOlder(Incarnation current, const Status& why) {
  MutexLock lock(table_.mutex);
  std::vector<VersionId> versions;
  for (uint32_t slot = 0; slot < table_.entries.size(); ++slot) {
    const SlotTable::Entry& entry = table_.entries[slot];
    if (entry.phase != SlotTable::Phase::kCopying || !entry.given_up.ok()) continue;
    if (entry.version.incarnation >= current) continue;
    versions.push_back(entry.version);
    table_.GiveUp(slot, why);
  }
  return versions;
}

bool SaveSlots::HasRoom() {
  MutexLock lock(table_.mutex);
  for (const SlotTable::Entry& entry : table_.entries) {
    if (entry.phase == SlotTable::Phase::kFree) return true;
  }
  return !FreeableSlots(table_.Infos(), table_.job()).empty();
}

std::optional<SaveJob> SealSlots::TakeSave() {
  MutexLock lock(table_.mutex);
  for (;;) {
    if (table_.Stopped()) return std::nullopt;
    std::optional<uint32_t> oldest;
    for (uint32_t slot = 0; slot < table_.entries.size(); ++slot) {
      const SlotTable::Entry& entry = table_.entries[slot];
      if (entry.phase != SlotTable::Phase::kCopying || entry.sealer_took || !entry.given_up.ok()) {
        continue;
      }
      if (!oldest || entry.version < table_.entries[*oldest].version) oldest = slot;
    }
    if (oldest) {
      table_.entries[*oldest].sealer_took = true;
      ++table_.entries[*oldest].users;
      return table_.JobOf(*oldest);
    }
    table_.changed.Wait(table_.mutex);
  }
}

SealSlots::SaveSignal SealSlots::Signal(uint32_t slot) {
  MutexLock lock(table_.mutex);
  if (table_.segment.invariants().violated()) return {false, table_.segment.invariants().error()};
  if (table_.stopping) return {false, {ErrorCode::kCancelled, "the agent is stopping"}};
  return {table_.entries[slot].ended, table_.entries[slot].given_up};
}

bool SealSlots::PublishChecksummed(uint32_t slot, uint64_t bytes) {
  MutexLock lock(table_.mutex);
  const SlotTable::Entry& entry = table_.entries[slot];
  HOLDFAST_INVARIANT(table_.segment.invariants(), bytes >= entry.checksummed, Kv("slot", slot),
                     Kv("before", entry.checksummed), Kv("now", bytes));
  HOLDFAST_INVARIANT(table_.segment.invariants(), bytes <= entry.image_bytes, Kv("slot", slot),
                     Kv("bytes", bytes), Kv("image", entry.image_bytes));
  HOLDFAST_INVARIANT(table_.segment.invariants(), entry.users > 0 && entry.sealer_took,
                     Kv("slot", slot), Kv("users", entry.users));
  table_.entries[slot].checksummed = bytes;
  table_.changed.NotifyAll();
  return !table_.Stopped() && table_.entries[slot].given_up.ok();
}

Status SealSlots::AwaitEnd(uint32_t slot) {
  MutexLock lock(table_.mutex);
  while (!table_.Stopped() && !table_.entries[slot].ended && table_.entries[slot].given_up.ok()) {
    table_.changed.Wait(table_.mutex);
  }
  HOLDFAST_RETURN_IF_ERROR(table_.segment.invariants().error());
  if (!table_.entries[slot].given_up.ok()) return table_.entries[slot].given_up;
  if (!table_.entries[slot].ended) return Status(ErrorCode::kCancelled, "the agent is stopping");
  return Status::Ok();
}

void SealSlots::CheckSealable(uint32_t slot, const ShardSeal& seal) const {
  const SlotTable::Entry& entry = table_.entries[slot];
  HOLDFAST_INVARIANT(table_.segment.invariants(), entry.phase == SlotTable::Phase::kCopying,
                     Kv("slot", slot));
  HOLDFAST_INVARIANT(table_.segment.invariants(),
                     entry.ended && entry.sealer_took && entry.users > 0, Kv("slot", slot),
                     Kv("ended", entry.ended), Kv("users", entry.users));
  HOLDFAST_INVARIANT(table_.segment.invariants(), entry.checksummed == entry.image_bytes,
                     Kv("slot", slot), Kv("checksummed", entry.checksummed),
                     Kv("image", entry.image_bytes));
  HOLDFAST_INVARIANT(table_.segment.invariants(), seal.image_bytes == entry.image_bytes,
                     Kv("slot", slot), Kv("seal", seal.image_bytes),
                     Kv("image", entry.image_bytes));
  HOLDFAST_INVARIANT(table_.segment.invariants(),
                     seal.chunk_crcs.size() == ChunkCount(entry.image_bytes), Kv("slot", slot),
                     Kv("chunks", seal.chunk_crcs.size()));
  HOLDFAST_INVARIANT(table_.segment.invariants(), seal.identity.version == entry.version,
                     Kv("slot", slot), Kv("seal", ToString(seal.identity.version)));
  // A rank seals its steps in order. The coordinator aborts older steps because of it.
  const VersionId newest = table_.newest_sealed;
  HOLDFAST_INVARIANT(table_.segment.invariants(),
                     newest.incarnation != entry.version.incarnation || newest < entry.version,
                     Kv("newest", ToString(newest)), Kv("version", ToString(entry.version)));
}

Status SealSlots::SealSave(uint32_t slot, const ShardSeal& seal) {
  MutexLock lock(table_.mutex);
  SlotTable::Entry& entry = table_.entries[slot];
  if (!entry.given_up.ok()) return entry.given_up;
  CheckSealable(slot, seal);
  HOLDFAST_RETURN_IF_ERROR(table_.segment.invariants().error());
  HOLDFAST_RETURN_IF_ERROR(table_.segment.Seal(slot, seal));
  HOLDFAST_RETURN_IF_ERROR(table_.segment.invariants().error());
  entry.phase = SlotTable::Phase::kSealed;
  entry.verified = true;
  table_.newest_sealed = std::max(table_.newest_sealed, entry.version);
  table_.Release(slot);
  return Status::Ok();
}

void SealSlots::DropSave(uint32_t slot, const Status& why) {
  MutexLock lock(table_.mutex);
  SlotTable::Entry& entry = table_.entries[slot];
  if (entry.given_up.ok()) entry.given_up = why;
  table_.Release(slot);
  table_.ChoosePeerVersion();
}

}  // namespace holdfast::agent
