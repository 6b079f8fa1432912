#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/arena/arena.h"
#include "agent/pipeline/change_signal.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/disk_pace.h"
#include "agent/pipeline/slot_policy.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace holdfast::agent {

/// A sealed slot that was freed for something newer.
struct FreedSlot {
  VersionId version;
  bool disk_missed = false;      // it was eligible for disk and its write had not begun
  bool disk_superseded = false;  // it will not be on disk: a newer version is written instead
};

/// A save in progress in the sealer and the persister.
struct SaveJob {
  uint32_t slot = 0;
  ShardIdentity identity;
  uint64_t image_bytes = 0;
  LifeId life;
};

/// Tracks the users and the progress of one rank's slots for its session, sealer, persister and
/// restores. The ledger (Segment) stores the slots' contents across restarts; this class holds the
/// state of the running process. A slot is freed only when it has no users. Thread-safe; the mutex
/// is held only for bookkeeping, never during checksums, copies or I/O.
class RankSlots {
 public:
  /// Takes over the sealed slots of an adopted segment as unverified: they are not offered until
  /// Verified() is called for them. Raises `peer_versions` whenever NextForPeers() has another
  /// shard. `segment` and `peer_versions` outlive the object.
  RankSlots(Segment& segment, uint64_t disk_every_steps, uint64_t peer_every_steps,
            ChangeSignal& peer_versions);

  Segment& segment() { return segment_; }
  void SetJobState(const JobState& job);
  /// Drops the job state after a change of the coordinator store's life. No slot is freed until the
  /// next SetJobState().
  void ForgetJobState();
  /// Sets the life of new saves, and the life to which seals without one belong. Slots sealed in
  /// another life are written to disk and may then be freed for saves.
  void SetLife(LifeId life, LifeId unlabeled);
  LifeId life();

  // ---- saves (session) ----

  /// Leases a slot. When none is free, frees one that the policy allows and adds it to `freed`.
  /// AlreadyExists: this step, or a later one of the incarnation, is saved already.
  /// ResourceExhausted: no slot is free.
  Result<uint32_t> BeginSave(VersionId version, uint32_t world, uint64_t image_bytes,
                             std::vector<FreedSlot>* freed);
  /// Records that the copy is complete: the sealer may seal the slot.
  Status EndSave(uint32_t slot, VersionId version);
  /// Records that the copy failed. The slot is freed once it has no users.
  Status AbandonSave(uint32_t slot, VersionId version, const Status& why);
  /// Gives up every save whose copy has not ended; returns their versions.
  std::vector<VersionId> AbortUnended(const Status& why);
  /// Gives up every unsealed save of an incarnation before `current`; returns their versions.
  std::vector<VersionId> AbortOlder(Incarnation current, const Status& why);
  /// Returns whether BeginSave would find a slot.
  bool HasRoom();

  // ---- sealer ----

  /// Waits for the next save. Returns nothing when stopping.
  std::optional<SaveJob> TakeSave();
  struct SaveSignal {
    bool ended = false;
    Status given_up;  // not ok: the sealer must stop working on the save
  };
  SaveSignal Signal(uint32_t slot);
  /// Records that bytes [0, bytes) are checksummed and wakes the persister. Returns false when the
  /// save was given up.
  bool PublishChecksummed(uint32_t slot, uint64_t bytes);
  /// Waits until the trainer has ended the copy. Returns the reason when the save was given up.
  Status AwaitEnd(uint32_t slot);
  /// Seals the slot in the ledger.
  Status SealSave(uint32_t slot, const ShardSeal& seal);
  /// Ends the sealer's use of a save that was not sealed because of `why`.
  void DropSave(uint32_t slot, const Status& why);

  // ---- persister ----

  /// Waits for the next version to write. Returns nothing when stopping.
  std::optional<SaveJob> TakeDisk();
  struct DiskFollow {
    uint64_t checksummed = 0;
    bool sealed = false;
    bool given_up = false;
  };
  /// Waits until more than `seen` bytes are checksummed, or the save is sealed or given up.
  DiskFollow AwaitChecksummed(uint32_t slot, uint64_t seen);
  /// Ends the persister's use of the slot. `given_up`: the save or the version was given up, and
  /// nothing was written.
  void FinishDisk(const SaveJob& job, bool given_up);

  // ---- peers ----

  /// Returns the shard whose parity is to be built now. Of the versions saved here, it is the first
  /// one at or after the coordinator's target whose step is divisible by `peer_every_steps`, so all
  /// ranks of the job choose the same one. Its slot is kept until the target moves past the version
  /// or the version is aborted.
  std::optional<ShardIdentity> NextForPeers();

  /// Waits until the version is being saved or is sealed here, and pins its slot: the caller must
  /// Unpin() it. NotFound: memory does not have the version and never will. Cancelled: `cancelled`
  /// was set (see Wake).
  Result<uint32_t> Follow(VersionId version, const std::atomic<bool>& cancelled,
                          Clock::TimePoint deadline);
  /// Waits until bytes [0, until) of a followed slot are checksummed, or the slot is sealed.
  /// Returns the number of checksummed bytes. Aborted: the save was given up.
  Result<uint64_t> AwaitBytes(uint32_t slot, uint64_t until, const std::atomic<bool>& cancelled,
                              Clock::TimePoint deadline);
  /// Waits until a followed slot is sealed. Errors as AwaitBytes.
  Result<ShardSeal> AwaitSeal(uint32_t slot, const std::atomic<bool>& cancelled,
                              Clock::TimePoint deadline);
  /// Makes every wait check its `cancelled` again.
  void Wake();

  // ---- restores, parity, checks, readers ----

  /// As BeginSave, for a shard that is restored, rebuilt or built.
  Result<uint32_t> LeaseForRestore(VersionId version, uint32_t world, uint64_t image_bytes,
                                   std::vector<FreedSlot>* freed);
  Status SealRestored(uint32_t slot, const ShardSeal& seal);
  /// As SealRestored, for a shard that was built here and still has to be written to disk.
  Status SealBuilt(uint32_t slot, const ShardSeal& seal);
  /// Frees a slot leased by LeaseForRestore that was not sealed.
  void DropRestore(uint32_t slot);
  /// Which sealed slots Pin() returns: only verified and intact ones; also damaged ones; also those
  /// that are not verified yet.
  enum class Find : uint8_t { kIntact, kIncludeDamaged, kIncludeUnchecked };
  /// Keeps the sealed slot of `version` from being freed until Unpin(). NotFound: memory has no
  /// such slot.
  Result<uint32_t> Pin(VersionId version, Find find = Find::kIntact);
  void Unpin(uint32_t slot);
  /// Returns whether the pinned slot stays when it is unpinned.
  bool KeepsAfterUnpin(uint32_t slot);
  /// Records that all chunks of the pinned slot are good, possibly after a repair. `on_disk`: disk
  /// has the same image.
  void Verified(uint32_t slot, bool on_disk);
  /// Records that the sealed slot has bad chunks. It is not offered as an intact replica until
  /// Verified(); peers may read its good chunks. NotFound: memory does not have the version, or the
  /// damage was known already.
  Status MarkDamaged(VersionId version);
  /// Stops offering a sealed slot and frees it as soon as it has no users. NotFound: memory does
  /// not have the version.
  Status Discard(VersionId version);
  /// Frees all slots and returns their versions, so that the memory can be reassigned. No slot may
  /// have users. The policy must allow each version to be freed or, with `on_disk_too`, the version
  /// must be committed on disk. FailedPrecondition: names the version that must stay; no slot is
  /// freed.
  Result<std::vector<VersionId>> Vacate(bool on_disk_too);
  /// Returns whether memory has the version, damaged and unverified replicas included.
  bool Has(VersionId version);
  /// Keeps `version` from being freed until the restore that it was prepared for is decided.
  void HoldForRestore(VersionId version);

  struct SlotStatus {
    SlotInfo info;
    uint64_t image_bytes = 0;
    uint64_t checksummed = 0;
    bool verified = false;
    std::string_view disk;
  };
  std::vector<SlotStatus> Snapshot();
  /// Returns the incarnation of a save that is not sealed yet, or of a slot that was not verified
  /// yet after a restart of the agent.
  std::optional<Incarnation> Unsealed();
  /// From now on the persister also writes the version committed at memory, regardless of the
  /// target.
  void StartFlush();
  /// Waits until the flush has ended: the version is on disk, or its write failed. Returns false
  /// when the deadline passed first.
  bool AwaitFlushed(Clock::TimePoint deadline);
  /// Returns the intact sealed versions that the policy does not allow to be freed.
  std::vector<VersionId> Kept();
  /// Returns the sealed versions, newest first, with whether each is verified.
  std::vector<std::pair<VersionId, bool>> SealedVersions();

  /// Ends all waits.
  void Stop();

 private:
  enum class Phase { kFree, kCopying, kFilling, kSealed };
  enum class Disk { kNone, kWriting, kDone };
  struct Entry {
    Phase phase = Phase::kFree;
    VersionId version;
    uint32_t world = 0;
    uint64_t image_bytes = 0;
    uint64_t checksummed = 0;
    uint32_t users = 0;  // sealer, persister, readers
    bool sealer_took = false;
    bool ended = false;
    bool verified = false;
    bool damaged = false;  // sealed, with bad chunks
    bool discard = false;  // sealed, to be freed when it has no users
    Status given_up;       // unsealed: not ok when the save was given up
    Disk disk = Disk::kNone;
    LifeId life;
  };

  Result<uint32_t> Lease(VersionId version, uint32_t world, uint64_t image_bytes,
                         std::vector<FreedSlot>* freed, bool restore) HOLDFAST_REQUIRES(mutex_);
  std::vector<uint32_t> Freeable(VersionId for_restore) const HOLDFAST_REQUIRES(mutex_);
  std::optional<uint32_t> ToFlush() const HOLDFAST_REQUIRES(mutex_);
  bool IsFlushed() const HOLDFAST_REQUIRES(mutex_);
  Status CheckNewer(VersionId version) const HOLDFAST_REQUIRES(mutex_);
  std::vector<SlotInfo> Slots() const HOLDFAST_REQUIRES(mutex_);
  void GiveUp(uint32_t slot, const Status& why) HOLDFAST_REQUIRES(mutex_);
  /// Frees the slot if it has no users and was given up or discarded.
  void FreeIfUnused(uint32_t slot) HOLDFAST_REQUIRES(mutex_);
  void Release(uint32_t slot) HOLDFAST_REQUIRES(mutex_);
  Status CheckOpenSave(uint32_t slot, VersionId version) const HOLDFAST_REQUIRES(mutex_);
  std::vector<DiskCandidate> DiskCandidates() const HOLDFAST_REQUIRES(mutex_);
  bool Aborted(VersionId version) const HOLDFAST_REQUIRES(mutex_);
  bool IsEligibleForPeers(VersionId version) const HOLDFAST_REQUIRES(mutex_);
  void ChoosePeerVersion() HOLDFAST_REQUIRES(mutex_);
  bool IsOfOtherLife(const Entry& entry) const HOLDFAST_REQUIRES(mutex_);
  std::optional<uint32_t> OtherLifeForDisk() const HOLDFAST_REQUIRES(mutex_);
  Status CheckWait(const std::atomic<bool>& cancelled, Clock::TimePoint deadline)
      HOLDFAST_REQUIRES(mutex_);
  Status SealFilled(uint32_t slot, const ShardSeal& seal, Disk disk) HOLDFAST_REQUIRES(mutex_);
  SaveJob JobOf(uint32_t slot) const HOLDFAST_REQUIRES(mutex_);
  const JobState* job() const HOLDFAST_REQUIRES(mutex_) { return job_ ? &*job_ : nullptr; }

  Segment& segment_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Entry> entries_ HOLDFAST_GUARDED_BY(mutex_);
  std::optional<JobState> job_ HOLDFAST_GUARDED_BY(mutex_);
  DiskPace pace_ HOLDFAST_GUARDED_BY(mutex_);
  const uint64_t peer_every_;
  ChangeSignal& peer_versions_;
  std::optional<VersionId> peer_version_ HOLDFAST_GUARDED_BY(mutex_);
  VersionId newest_sealed_ HOLDFAST_GUARDED_BY(mutex_);
  std::optional<VersionId> held_ HOLDFAST_GUARDED_BY(mutex_);
  bool flushing_ HOLDFAST_GUARDED_BY(mutex_) = false;
  LifeId life_ HOLDFAST_GUARDED_BY(mutex_);
  LifeId unlabeled_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast::agent
