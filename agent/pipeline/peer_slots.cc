#include "agent/pipeline/peer_slots.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast::agent {

std::optional<ShardIdentity> PeerSlots::NextForPeers() {
  MutexLock lock(table_.mutex);
  for (uint32_t slot = 0; table_.peer_version && slot < table_.entries.size(); ++slot) {
    const SlotTable::Entry& entry = table_.entries[slot];
    if (entry.phase != SlotTable::Phase::kFree && entry.version == table_.peer_version) {
      return table_.JobOf(slot).identity;
    }
  }
  return std::nullopt;
}

Status PeerSlots::CheckWait(const std::atomic<bool>& cancelled, Clock::TimePoint deadline) {
  HOLDFAST_RETURN_IF_ERROR(table_.segment.invariants().error());
  if (table_.stopping) return CancelledError("the agent is stopping");
  if (cancelled.load()) return CancelledError("the wait was cancelled");
  if (table_.changed.WaitUntil(table_.mutex, deadline)) return Status::Ok();
  return DeadlineExceededError("the bytes were not available before the deadline");
}

Result<uint32_t> PeerSlots::Follow(VersionId version, const std::atomic<bool>& cancelled,
                                   Clock::TimePoint deadline) {
  MutexLock lock(table_.mutex);
  for (;;) {
    HOLDFAST_RETURN_IF_ERROR(table_.segment.invariants().error());
    VersionId newest = table_.newest_sealed;
    for (uint32_t slot = 0; slot < table_.entries.size(); ++slot) {
      SlotTable::Entry& entry = table_.entries[slot];
      const bool sealed =
          entry.phase == SlotTable::Phase::kSealed && entry.verified && !entry.discard;
      const bool copying = entry.IsSaving();
      if (!sealed && !copying) continue;
      newest = std::max(newest, entry.version);
      if (entry.version != version) continue;
      ++entry.users;
      return slot;
    }
    // Steps are saved in order: an older version that memory lacks will never be saved.
    if (newest >= version || table_.Aborted(version) ||
        (table_.job_state && table_.job_state->incarnation > version.incarnation)) {
      return Fail(
          NotFoundError(fmt::format("version {} of {} is not in this node's memory",
                                    ToString(version), ShardName(table_.segment.owner().rank))));
    }
    HOLDFAST_RETURN_IF_ERROR(CheckWait(cancelled, deadline));
  }
}

Result<uint64_t> PeerSlots::AwaitBytes(uint32_t slot, uint64_t until,
                                       const std::atomic<bool>& cancelled,
                                       Clock::TimePoint deadline) {
  MutexLock lock(table_.mutex);
  for (;;) {
    const SlotTable::Entry& entry = table_.entries[slot];
    HOLDFAST_INVARIANT(table_.segment.invariants(),
                       entry.users > 0 && entry.checksummed <= entry.image_bytes, Kv("slot", slot),
                       Kv("users", entry.users), Kv("checksummed", entry.checksummed));
    HOLDFAST_RETURN_IF_ERROR(table_.segment.invariants().error());
    if (entry.phase == SlotTable::Phase::kSealed || entry.checksummed >= until) {
      return entry.checksummed;
    }
    if (!entry.given_up.ok()) return Fail(AbortedError(entry.given_up.message()));
    HOLDFAST_RETURN_IF_ERROR(CheckWait(cancelled, deadline));
  }
}

Result<ShardSeal> PeerSlots::AwaitSeal(uint32_t slot, const std::atomic<bool>& cancelled,
                                       Clock::TimePoint deadline) {
  {
    MutexLock lock(table_.mutex);
    while (table_.entries[slot].phase != SlotTable::Phase::kSealed) {
      if (!table_.entries[slot].given_up.ok()) {
        return Fail(AbortedError(table_.entries[slot].given_up.message()));
      }
      HOLDFAST_RETURN_IF_ERROR(CheckWait(cancelled, deadline));
    }
  }
  return table_.segment.seal(slot);
}

void PeerSlots::Wake() {
  MutexLock lock(table_.mutex);
  table_.changed.NotifyAll();
}

}  // namespace holdfast::agent
