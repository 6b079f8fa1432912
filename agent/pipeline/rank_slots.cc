#include "agent/pipeline/rank_slots.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast::agent {
namespace {
/// Returns the job state as parity shards need it: their commits are those of the peer tier.
JobState ForParity(JobState job) {
  job.committed[Tier::kMemory] = job.committed[Tier::kPeer];
  job.group.reset();
  return job;
}
}  // namespace

void RankSlots::SetJobState(const JobState& state) {
  MutexLock lock(table_.mutex);
  table_.job_state = IsParity(table_.segment.owner().rank) ? ForParity(state) : state;
  const JobState& job = *table_.job_state;
  const bool past_restore = job.committed[Tier::kMemory].has_value() &&
                            job.committed[Tier::kMemory]->incarnation == job.incarnation;
  if (job.restore.has_value() || past_restore) table_.held.reset();
  table_.ChoosePeerVersion();
  table_.changed.NotifyAll();
}

void RankSlots::ForgetJobState() {
  MutexLock lock(table_.mutex);
  table_.job_state.reset();
  table_.held.reset();
  table_.ChoosePeerVersion();
  table_.changed.NotifyAll();
}

void RankSlots::SetLife(LifeId life, LifeId unlabeled) {
  MutexLock lock(table_.mutex);
  table_.unlabeled = unlabeled;
  if (life == table_.life) return;
  table_.life = life;
  // The steps saved in another life do not restrict the steps of this one.
  table_.newest_sealed = {};
  for (const SlotTable::Entry& entry : table_.entries) {
    if (entry.phase != SlotTable::Phase::kSealed || table_.IsOfOtherLife(entry)) continue;
    table_.newest_sealed = std::max(table_.newest_sealed, entry.version);
  }
  table_.ChoosePeerVersion();
  table_.changed.NotifyAll();
}

LifeId RankSlots::life() {
  MutexLock lock(table_.mutex);
  return table_.life;
}

Result<std::vector<VersionId>> RankSlots::Vacate(bool on_disk_too) {
  MutexLock lock(table_.mutex);
  HOLDFAST_RETURN_IF_ERROR(table_.segment.invariants().error());
  const std::vector<SlotInfo> slots = table_.Infos();
  const std::vector<uint32_t> freeable = FreeableSlots(slots, table_.job());
  for (const SlotInfo& slot : slots) {
    if (slot.state == SlotState::kFree) continue;
    const std::string version = ToString(slot.version);
    if (slot.state == SlotState::kLeased || slot.in_use || slot.held) {
      return Fail(FailedPreconditionError("version " + version + " is in use"));
    }
    const bool on_disk = on_disk_too && table_.job_state &&
                         table_.job_state->committed[Tier::kDisk] &&
                         slot.version <= *table_.job_state->committed[Tier::kDisk];
    const bool may_go = std::find(freeable.begin(), freeable.end(), slot.slot) != freeable.end();
    if (!on_disk && !may_go) {
      return Fail(FailedPreconditionError("version " + version + " is only in memory"));
    }
  }
  std::vector<VersionId> freed;
  for (const SlotInfo& slot : slots) {
    if (slot.state == SlotState::kFree) continue;
    HOLDFAST_RETURN_IF_ERROR(table_.segment.Free(slot.slot));
    freed.push_back(slot.version);
    table_.entries[slot.slot] = SlotTable::Entry{};
  }
  return freed;
}

void RankSlots::Stop() {
  MutexLock lock(table_.mutex);
  table_.stopping = true;
  table_.changed.NotifyAll();
}

}  // namespace holdfast::agent
