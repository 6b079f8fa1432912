#include "agent/pipeline/rank_slots.h"

#include <fmt/format.h>

#include <algorithm>

#include "storage/base/log.h"

namespace holdfast::agent {

RankSlots::RankSlots(Segment& segment, uint64_t disk_every_steps, uint64_t peer_every_steps,
                     ChangeSignal& peer_versions)
    : segment_(segment),
      entries_(segment.slot_count()),
      pace_(disk_every_steps),
      peer_every_(std::max<uint64_t>(peer_every_steps, 1)),
      peer_versions_(peer_versions) {
  for (uint32_t slot = 0; slot < segment.slot_count(); ++slot) {
    const SlotRecord record = segment.record(slot);
    if (record.state != SlotState::kSealed) continue;
    Entry& entry = entries_[slot];
    entry.phase = Phase::kSealed;
    entry.version = record.version;
    entry.world = record.world;
    entry.image_bytes = record.image_bytes;
    entry.checksummed = record.image_bytes;
    entry.life = record.life;
    newest_sealed_ = std::max(newest_sealed_, record.version);
  }
}

void RankSlots::SetJobState(const JobState& job) {
  MutexLock lock(mutex_);
  job_ = job;
  const bool past_restore =
      job.memory_committed.has_value() && job.memory_committed->incarnation == job.incarnation;
  if (job.restore.has_value() || past_restore) held_.reset();
  ChoosePeerVersion();
  changed_.NotifyAll();
}

void RankSlots::ForgetJobState() {
  MutexLock lock(mutex_);
  job_.reset();
  held_.reset();
  ChoosePeerVersion();
  changed_.NotifyAll();
}

void RankSlots::SetLife(LifeId life, LifeId unlabeled) {
  MutexLock lock(mutex_);
  unlabeled_ = unlabeled;
  if (life == life_) return;
  life_ = life;
  // The saved steps of another life do not restrict the steps of this one.
  newest_sealed_ = {};
  for (const Entry& entry : entries_) {
    if (entry.phase != Phase::kSealed || IsOfOtherLife(entry)) continue;
    newest_sealed_ = std::max(newest_sealed_, entry.version);
  }
  changed_.NotifyAll();
}

LifeId RankSlots::life() {
  MutexLock lock(mutex_);
  return life_;
}

bool RankSlots::IsOfOtherLife(const Entry& entry) const {
  const LifeId life = entry.life.value != 0 ? entry.life : unlabeled_;
  return life_.value != 0 && life.value != 0 && life != life_;
}

// ---- saves ----

Status RankSlots::CheckNewer(VersionId version) const {
  VersionId newest = newest_sealed_;
  if (job_ && job_->memory_committed) newest = std::max(newest, *job_->memory_committed);
  for (const Entry& entry : entries_) {
    if (entry.phase == Phase::kCopying && entry.given_up.ok()) {
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
      fmt::format("step {} is not newer than step {}, which this run saved already: the steps of a "
                  "run must increase. To go back, restore in a new run (a new run ID)",
                  version.step.value, newest.step.value));
}

Result<uint32_t> RankSlots::BeginSave(VersionId version, uint32_t world, uint64_t image_bytes,
                                      std::vector<FreedSlot>* freed) {
  MutexLock lock(mutex_);
  HOLDFAST_RETURN_IF_ERROR(CheckNewer(version));
  HOLDFAST_ASSIGN_OR_RETURN(uint32_t slot, Lease(version, world, image_bytes, freed, false));
  entries_[slot].phase = Phase::kCopying;
  ChoosePeerVersion();
  changed_.NotifyAll();
  return slot;
}

/// Returns the slots that may be freed. For the restore of a parity shard (`for_restore`), these
/// include older parity versions that are not committed at peer: the restored version replaces
/// them.
std::vector<uint32_t> RankSlots::Freeable(VersionId for_restore) const {
  const std::vector<SlotInfo> slots = Slots();
  std::vector<uint32_t> freeable = FreeableSlots(slots, job());
  if (!freeable.empty() || job() == nullptr || !job()->for_parity) return freeable;
  for (const SlotInfo& slot : slots) {
    if (slot.state != SlotState::kSealed || slot.in_use || slot.held) continue;
    if (slot.version >= for_restore || slot.version == job()->peer_committed) continue;
    freeable.push_back(slot.slot);
  }
  return freeable;
}

Result<uint32_t> RankSlots::Lease(VersionId version, uint32_t world, uint64_t image_bytes,
                                  std::vector<FreedSlot>* freed, bool restore) {
  auto slot = segment_.Lease(version, world, image_bytes);
  if (!slot && slot.error().code() == ErrorCode::kResourceExhausted) {
    const std::vector<uint32_t> freeable = Freeable(restore ? version : VersionId{});
    if (freeable.empty()) {
      return Fail({ErrorCode::kResourceExhausted,
                   fmt::format("all {} slots are in use: each is being written, or has a version "
                               "that no newer commit has replaced yet",
                               entries_.size())});
    }
    Entry& oldest = entries_[freeable.front()];
    const bool unwritten = oldest.disk == Disk::kNone && oldest.verified;
    const bool missed = unwritten && pace_.IsEligible(oldest.version, job());
    HOLDFAST_RETURN_IF_ERROR(segment_.Free(freeable.front()));
    freed->push_back({oldest.version, missed, unwritten && pace_.IsOnInterval(oldest.version)});
    oldest = Entry{};
    slot = segment_.Lease(version, world, image_bytes);
  }
  if (!slot) return slot;
  Entry& entry = entries_[*slot];
  entry = Entry{};
  entry.version = version;
  entry.world = world;
  entry.image_bytes = image_bytes;
  entry.life = life_;
  return slot;
}

Status RankSlots::CheckOpenSave(uint32_t slot, VersionId version) const {
  if (slot >= entries_.size()) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("slot {} does not exist: this rank has {} slots", slot, entries_.size()));
  }
  const Entry& entry = entries_[slot];
  if (entry.phase != Phase::kCopying || entry.version != version || entry.ended) {
    return Status(ErrorCode::kFailedPrecondition,
                  fmt::format("slot {} is not being saved as version {}", slot, ToString(version)));
  }
  return entry.given_up;
}

Status RankSlots::EndSave(uint32_t slot, VersionId version) {
  MutexLock lock(mutex_);
  HOLDFAST_RETURN_IF_ERROR(CheckOpenSave(slot, version));
  entries_[slot].ended = true;
  changed_.NotifyAll();
  return Status::Ok();
}

Status RankSlots::AbandonSave(uint32_t slot, VersionId version, const Status& why) {
  MutexLock lock(mutex_);
  HOLDFAST_RETURN_IF_ERROR(CheckOpenSave(slot, version));
  GiveUp(slot, why);
  return Status::Ok();
}

std::vector<VersionId> RankSlots::AbortUnended(const Status& why) {
  MutexLock lock(mutex_);
  std::vector<VersionId> versions;
  for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
    const Entry& entry = entries_[slot];
    if (entry.phase != Phase::kCopying || entry.ended || !entry.given_up.ok()) continue;
    versions.push_back(entry.version);
    GiveUp(slot, why);
  }
  return versions;
}

std::vector<VersionId> RankSlots::AbortOlder(Incarnation current, const Status& why) {
  MutexLock lock(mutex_);
  std::vector<VersionId> versions;
  for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
    const Entry& entry = entries_[slot];
    if (entry.phase != Phase::kCopying || !entry.given_up.ok()) continue;
    if (entry.version.incarnation >= current) continue;
    versions.push_back(entry.version);
    GiveUp(slot, why);
  }
  return versions;
}

bool RankSlots::HasRoom() {
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.phase == Phase::kFree) return true;
  }
  return !FreeableSlots(Slots(), job()).empty();
}

void RankSlots::GiveUp(uint32_t slot, const Status& why) {
  Entry& entry = entries_[slot];
  if (entry.given_up.ok()) entry.given_up = why;
  FreeIfUnused(slot);
  ChoosePeerVersion();
  changed_.NotifyAll();
}

void RankSlots::FreeIfUnused(uint32_t slot) {
  Entry& entry = entries_[slot];
  if (entry.users > 0) return;
  Status status;
  if (entry.phase == Phase::kCopying && !entry.given_up.ok()) {
    status = segment_.Abandon(slot);
  } else if (entry.phase == Phase::kSealed && entry.discard) {
    status = segment_.Free(slot);
  } else {
    return;
  }
  if (!status.ok()) {
    Log(LogLevel::kError, "SlotNotFreed", {Kv("slot", slot), Kv("error", status.ToString())});
  }
  entry = Entry{};
  changed_.NotifyAll();
}

void RankSlots::Release(uint32_t slot) {
  --entries_[slot].users;
  FreeIfUnused(slot);
  changed_.NotifyAll();
}

std::vector<SlotInfo> RankSlots::Slots() const {
  std::vector<SlotInfo> infos;
  infos.reserve(entries_.size());
  for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
    const Entry& entry = entries_[slot];
    SlotInfo info;
    info.slot = slot;
    info.version = entry.version;
    info.in_use = entry.users > 0 || (entry.phase == Phase::kSealed && !entry.verified);
    info.held = held_ == entry.version || peer_version_ == entry.version;
    info.other_life = IsOfOtherLife(entry);
    info.disk_done = entry.disk == Disk::kDone;
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

SaveJob RankSlots::JobOf(uint32_t slot) const {
  const Entry& entry = entries_[slot];
  SaveJob job;
  job.slot = slot;
  job.identity = {segment_.owner().job, entry.version, segment_.owner().rank, entry.world};
  job.life = entry.life;
  job.image_bytes = entry.image_bytes;
  return job;
}

// ---- sealer ----

std::optional<SaveJob> RankSlots::TakeSave() {
  MutexLock lock(mutex_);
  for (;;) {
    if (stopping_) return std::nullopt;
    std::optional<uint32_t> oldest;
    for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
      const Entry& entry = entries_[slot];
      if (entry.phase != Phase::kCopying || entry.sealer_took || !entry.given_up.ok()) continue;
      if (!oldest || entry.version < entries_[*oldest].version) oldest = slot;
    }
    if (oldest) {
      entries_[*oldest].sealer_took = true;
      ++entries_[*oldest].users;
      return JobOf(*oldest);
    }
    changed_.Wait(mutex_);
  }
}

RankSlots::SaveSignal RankSlots::Signal(uint32_t slot) {
  MutexLock lock(mutex_);
  if (stopping_) return {false, {ErrorCode::kCancelled, "the agent is stopping"}};
  return {entries_[slot].ended, entries_[slot].given_up};
}

bool RankSlots::PublishChecksummed(uint32_t slot, uint64_t bytes) {
  MutexLock lock(mutex_);
  entries_[slot].checksummed = bytes;
  changed_.NotifyAll();
  return !stopping_ && entries_[slot].given_up.ok();
}

Status RankSlots::AwaitEnd(uint32_t slot) {
  MutexLock lock(mutex_);
  while (!stopping_ && !entries_[slot].ended && entries_[slot].given_up.ok()) {
    changed_.Wait(mutex_);
  }
  if (!entries_[slot].given_up.ok()) return entries_[slot].given_up;
  if (!entries_[slot].ended) return Status(ErrorCode::kCancelled, "the agent is stopping");
  return Status::Ok();
}

Status RankSlots::SealSave(uint32_t slot, const ShardSeal& seal) {
  MutexLock lock(mutex_);
  Entry& entry = entries_[slot];
  if (!entry.given_up.ok()) return entry.given_up;
  HOLDFAST_RETURN_IF_ERROR(segment_.Seal(slot, seal));
  entry.phase = Phase::kSealed;
  entry.verified = true;
  newest_sealed_ = std::max(newest_sealed_, entry.version);
  Release(slot);
  return Status::Ok();
}

void RankSlots::DropSave(uint32_t slot, const Status& why) {
  MutexLock lock(mutex_);
  Entry& entry = entries_[slot];
  if (entry.given_up.ok()) entry.given_up = why;
  Release(slot);
  ChoosePeerVersion();
}

// ---- persister ----

std::vector<DiskCandidate> RankSlots::DiskCandidates() const {
  std::vector<DiskCandidate> candidates;
  for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
    const Entry& entry = entries_[slot];
    if (entry.disk != Disk::kNone || entry.discard || !entry.given_up.ok()) continue;
    if (IsOfOtherLife(entry) || Aborted(entry.version)) continue;
    const bool sealed = entry.phase == Phase::kSealed && entry.verified && !entry.damaged;
    if (sealed || entry.phase == Phase::kCopying) candidates.push_back({slot, entry.version});
  }
  return candidates;
}

/// Returns a slot of another life that is not on disk yet. Such slots are written regardless of the
/// pace.
std::optional<uint32_t> RankSlots::OtherLifeForDisk() const {
  for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
    const Entry& entry = entries_[slot];
    const bool intact = entry.phase == Phase::kSealed && entry.verified && !entry.damaged;
    if (intact && !entry.discard && entry.disk == Disk::kNone && IsOfOtherLife(entry)) return slot;
  }
  return std::nullopt;
}

std::optional<SaveJob> RankSlots::TakeDisk() {
  MutexLock lock(mutex_);
  for (;;) {
    if (stopping_) return std::nullopt;
    auto slot = pace_.Choose(DiskCandidates(), job());
    if (!slot && flushing_) slot = ToFlush();
    if (!slot) slot = OtherLifeForDisk();
    if (slot) {
      Entry& entry = entries_[*slot];
      entry.disk = Disk::kWriting;
      ++entry.users;
      return JobOf(*slot);
    }
    changed_.Wait(mutex_);
  }
}

std::optional<uint32_t> RankSlots::ToFlush() const {
  if (!job_ || !job_->memory_committed) return std::nullopt;
  for (const DiskCandidate& candidate : DiskCandidates()) {
    const bool sealed = entries_[candidate.slot].phase == Phase::kSealed;
    if (sealed && candidate.version == *job_->memory_committed) return candidate.slot;
  }
  return std::nullopt;
}

void RankSlots::StartFlush() {
  MutexLock lock(mutex_);
  flushing_ = true;
  changed_.NotifyAll();
}

bool RankSlots::AwaitFlushed(Clock::TimePoint deadline) {
  MutexLock lock(mutex_);
  while (!IsFlushed()) {
    if (Clock::Real().Now() >= deadline) return false;
    changed_.WaitUntil(mutex_, deadline);
  }
  return true;
}

bool RankSlots::IsFlushed() const {
  if (ToFlush()) return false;
  if (!job_) return true;
  const std::optional<VersionId> newest = job_->memory_committed;
  return std::none_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.disk == Disk::kWriting && entry.version == newest;
  });
}

std::optional<Incarnation> RankSlots::Unsealed() {
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    const bool saving = entry.phase == Phase::kCopying && entry.given_up.ok();
    if (saving || (entry.phase == Phase::kSealed && !entry.verified)) {
      return entry.version.incarnation;
    }
  }
  return std::nullopt;
}

RankSlots::DiskFollow RankSlots::AwaitChecksummed(uint32_t slot, uint64_t seen) {
  MutexLock lock(mutex_);
  for (;;) {
    const Entry& entry = entries_[slot];
    DiskFollow follow;
    follow.checksummed = entry.checksummed;
    follow.sealed = entry.phase == Phase::kSealed;
    follow.given_up = stopping_ || !entry.given_up.ok();
    if (follow.sealed || follow.given_up || follow.checksummed > seen) return follow;
    changed_.Wait(mutex_);
  }
}

void RankSlots::FinishDisk(const SaveJob& job, bool given_up) {
  MutexLock lock(mutex_);
  if (given_up) pace_.GiveUp(job.identity.version);
  entries_[job.slot].disk = Disk::kDone;
  Release(job.slot);
}

// ---- peers ----

bool RankSlots::Aborted(VersionId version) const {
  return job_ &&
         std::find(job_->aborted.begin(), job_->aborted.end(), version) != job_->aborted.end();
}

bool RankSlots::IsEligibleForPeers(VersionId version) const {
  return job_ && job_->group && version.incarnation == job_->incarnation &&
         version.step >= job_->peer_target_step && version.step.value % peer_every_ == 0 &&
         !Aborted(version);
}

void RankSlots::ChoosePeerVersion() {
  std::optional<VersionId> first;
  for (const Entry& entry : entries_) {
    const bool sealed = entry.phase == Phase::kSealed && entry.verified && !entry.discard;
    const bool copying = entry.phase == Phase::kCopying && entry.given_up.ok();
    if ((!sealed && !copying) || !IsEligibleForPeers(entry.version)) continue;
    if (!first || entry.version < *first) first = entry.version;
  }
  if (first == peer_version_) return;
  peer_version_ = first;
  if (first) peer_versions_.Raise();
}

std::optional<ShardIdentity> RankSlots::NextForPeers() {
  MutexLock lock(mutex_);
  for (uint32_t slot = 0; peer_version_ && slot < entries_.size(); ++slot) {
    const Entry& entry = entries_[slot];
    if (entry.phase != Phase::kFree && entry.version == peer_version_) return JobOf(slot).identity;
  }
  return std::nullopt;
}

Status RankSlots::CheckWait(const std::atomic<bool>& cancelled, Clock::TimePoint deadline) {
  if (stopping_) return CancelledError("the agent is stopping");
  if (cancelled.load()) return CancelledError("the wait was cancelled");
  if (Clock::Real().Now() >= deadline) {
    return DeadlineExceededError("the bytes were not available before the deadline");
  }
  changed_.WaitUntil(mutex_, deadline);
  return Status::Ok();
}

Result<uint32_t> RankSlots::Follow(VersionId version, const std::atomic<bool>& cancelled,
                                   Clock::TimePoint deadline) {
  MutexLock lock(mutex_);
  for (;;) {
    VersionId newest = newest_sealed_;
    for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
      Entry& entry = entries_[slot];
      const bool sealed = entry.phase == Phase::kSealed && entry.verified && !entry.discard;
      const bool copying = entry.phase == Phase::kCopying && entry.given_up.ok();
      if (!sealed && !copying) continue;
      newest = std::max(newest, entry.version);
      if (entry.version != version) continue;
      ++entry.users;
      return slot;
    }
    // Steps are saved in order: an older version that memory lacks will never be saved.
    if (newest >= version || Aborted(version) ||
        (job_ && job_->incarnation > version.incarnation)) {
      return Fail(NotFoundError(fmt::format("version {} of {} is not in this node's memory",
                                            ToString(version), ShardName(segment_.owner().rank))));
    }
    HOLDFAST_RETURN_IF_ERROR(CheckWait(cancelled, deadline));
  }
}

Result<uint64_t> RankSlots::AwaitBytes(uint32_t slot, uint64_t until,
                                       const std::atomic<bool>& cancelled,
                                       Clock::TimePoint deadline) {
  MutexLock lock(mutex_);
  for (;;) {
    const Entry& entry = entries_[slot];
    if (entry.phase == Phase::kSealed || entry.checksummed >= until) return entry.checksummed;
    if (!entry.given_up.ok()) return Fail(AbortedError(entry.given_up.message()));
    HOLDFAST_RETURN_IF_ERROR(CheckWait(cancelled, deadline));
  }
}

Result<ShardSeal> RankSlots::AwaitSeal(uint32_t slot, const std::atomic<bool>& cancelled,
                                       Clock::TimePoint deadline) {
  {
    MutexLock lock(mutex_);
    while (entries_[slot].phase != Phase::kSealed) {
      if (!entries_[slot].given_up.ok())
        return Fail(AbortedError(entries_[slot].given_up.message()));
      HOLDFAST_RETURN_IF_ERROR(CheckWait(cancelled, deadline));
    }
  }
  return segment_.seal(slot);
}

void RankSlots::Wake() {
  MutexLock lock(mutex_);
  changed_.NotifyAll();
}

// ---- restores, parity, checks, readers ----

Result<uint32_t> RankSlots::LeaseForRestore(VersionId version, uint32_t world, uint64_t image_bytes,
                                            std::vector<FreedSlot>* freed) {
  MutexLock lock(mutex_);
  HOLDFAST_ASSIGN_OR_RETURN(uint32_t slot, Lease(version, world, image_bytes, freed, true));
  entries_[slot].phase = Phase::kFilling;
  return slot;
}

Status RankSlots::SealRestored(uint32_t slot, const ShardSeal& seal) {
  MutexLock lock(mutex_);
  return SealFilled(slot, seal, Disk::kDone);
}

Status RankSlots::SealBuilt(uint32_t slot, const ShardSeal& seal) {
  MutexLock lock(mutex_);
  return SealFilled(slot, seal, Disk::kNone);
}

Status RankSlots::SealFilled(uint32_t slot, const ShardSeal& seal, Disk disk) {
  HOLDFAST_RETURN_IF_ERROR(segment_.Seal(slot, seal));
  Entry& entry = entries_[slot];
  entry.phase = Phase::kSealed;
  entry.verified = true;
  entry.checksummed = entry.image_bytes;
  entry.disk = disk;
  for (uint32_t other = 0; other < entries_.size(); ++other) {
    Entry& old = entries_[other];
    if (other == slot || !old.damaged || old.version != entry.version) continue;
    old.discard = true;  // the new slot replaces it
    FreeIfUnused(other);
  }
  changed_.NotifyAll();
  return Status::Ok();
}

void RankSlots::DropRestore(uint32_t slot) {
  MutexLock lock(mutex_);
  Status status = segment_.Abandon(slot);
  if (!status.ok()) {
    Log(LogLevel::kError, "SlotNotFreed", {Kv("slot", slot), Kv("error", status.ToString())});
  }
  entries_[slot] = Entry{};
  changed_.NotifyAll();
}

Result<uint32_t> RankSlots::Pin(VersionId version, Find find) {
  MutexLock lock(mutex_);
  for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
    Entry& entry = entries_[slot];
    if (entry.phase != Phase::kSealed || entry.version != version || entry.discard) continue;
    if (entry.damaged && find == Find::kIntact) continue;
    if (!entry.verified && find != Find::kIncludeUnchecked) continue;
    ++entry.users;
    return slot;
  }
  return Fail(
      {ErrorCode::kNotFound, fmt::format("version {} of rank {} is not in this node's memory",
                                         ToString(version), segment_.owner().rank.value)});
}

void RankSlots::Unpin(uint32_t slot) {
  MutexLock lock(mutex_);
  Release(slot);
}

bool RankSlots::KeepsAfterUnpin(uint32_t slot) {
  MutexLock lock(mutex_);
  return !entries_[slot].discard;
}

void RankSlots::Verified(uint32_t slot, bool on_disk) {
  MutexLock lock(mutex_);
  entries_[slot].verified = true;
  entries_[slot].damaged = false;
  if (on_disk) entries_[slot].disk = Disk::kDone;
  ChoosePeerVersion();
  changed_.NotifyAll();
}

Status RankSlots::MarkDamaged(VersionId version) {
  MutexLock lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.phase != Phase::kSealed || entry.version != version) continue;
    if (entry.discard || entry.damaged) continue;
    entry.damaged = true;
    entry.verified = true;  // verification has ended
    return Status::Ok();
  }
  return NotFoundError("memory has no intact replica of version " + ToString(version));
}

Status RankSlots::Discard(VersionId version) {
  MutexLock lock(mutex_);
  for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
    Entry& entry = entries_[slot];
    if (entry.phase != Phase::kSealed || entry.version != version || entry.discard) continue;
    entry.discard = true;
    FreeIfUnused(slot);
    return Status::Ok();
  }
  return Status(ErrorCode::kNotFound, "memory does not have version " + ToString(version));
}

bool RankSlots::Has(VersionId version) {
  MutexLock lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.phase == Phase::kSealed && entry.version == version && !entry.discard;
  });
}

Result<std::vector<VersionId>> RankSlots::Vacate(bool on_disk_too) {
  MutexLock lock(mutex_);
  const std::vector<SlotInfo> slots = Slots();
  const std::vector<uint32_t> freeable = FreeableSlots(slots, job());
  for (const SlotInfo& slot : slots) {
    if (slot.state == SlotState::kFree) continue;
    const std::string version = ToString(slot.version);
    if (slot.state == SlotState::kLeased || slot.in_use || slot.held) {
      return Fail(FailedPreconditionError("version " + version + " is in use"));
    }
    const bool on_disk =
        on_disk_too && job_ && job_->disk_committed && slot.version <= *job_->disk_committed;
    const bool may_go = std::find(freeable.begin(), freeable.end(), slot.slot) != freeable.end();
    if (!on_disk && !may_go) {
      return Fail(FailedPreconditionError("version " + version + " is only in memory"));
    }
  }
  std::vector<VersionId> freed;
  for (const SlotInfo& slot : slots) {
    if (slot.state == SlotState::kFree) continue;
    HOLDFAST_RETURN_IF_ERROR(segment_.Free(slot.slot));
    freed.push_back(slot.version);
    entries_[slot.slot] = Entry{};
  }
  return freed;
}

void RankSlots::HoldForRestore(VersionId version) {
  MutexLock lock(mutex_);
  held_ = version;
}

std::vector<RankSlots::SlotStatus> RankSlots::Snapshot() {
  MutexLock lock(mutex_);
  std::vector<SlotStatus> result;
  for (const SlotInfo& info : Slots()) {
    const Entry& entry = entries_[info.slot];
    SlotStatus status;
    status.info = info;
    status.image_bytes = entry.image_bytes;
    status.checksummed = entry.checksummed;
    status.verified = entry.verified && !entry.damaged;
    status.disk = entry.disk == Disk::kNone      ? "none"
                  : entry.disk == Disk::kWriting ? "writing"
                                                 : "done";
    result.push_back(status);
  }
  return result;
}

std::vector<VersionId> RankSlots::Kept() {
  MutexLock lock(mutex_);
  const std::vector<uint32_t> freeable = FreeableSlots(Slots(), job());
  std::vector<VersionId> kept;
  for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
    const Entry& entry = entries_[slot];
    const bool sealed =
        entry.phase == Phase::kSealed && entry.verified && !entry.damaged && !entry.discard;
    if (sealed && std::find(freeable.begin(), freeable.end(), slot) == freeable.end()) {
      kept.push_back(entry.version);
    }
  }
  return kept;
}

std::vector<std::pair<VersionId, bool>> RankSlots::SealedVersions() {
  MutexLock lock(mutex_);
  std::vector<std::pair<VersionId, bool>> result;
  for (const Entry& entry : entries_) {
    if (entry.phase == Phase::kSealed && !entry.discard) {
      result.emplace_back(entry.version, entry.verified);
    }
  }
  std::sort(result.rbegin(), result.rend());
  return result;
}

void RankSlots::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.NotifyAll();
}

}  // namespace holdfast::agent
