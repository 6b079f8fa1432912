#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/arena/arena.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/disk_pace.h"
#include "agent/pipeline/slot_policy.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace holdfast::agent {

/// A sealed slot that was freed for something newer.
struct FreedSlot {
  VersionId version;
  bool disk_missed = false;     // it was due for disk and its write had not begun
  bool disk_overtaken = false;  // it is not on disk: a newer version took its turn there
};

/// A save on its way through sealer and persister.
struct SaveJob {
  uint32_t slot = 0;
  ShardIdentity identity;
  uint64_t image_bytes = 0;
  LifeId life;
};

/// The meeting point of one rank's session, sealer, persister and restores: who is at which slot
/// and how far. The ledger (Segment) says what slots hold across restarts; this says what is going
/// on with them now. A slot is given back only when nobody is at it. Thread-safe; the mutex is held
/// only for bookkeeping, never over checksums, copies or I/O.
class RankSlots {
 public:
  /// Takes over the sealed slots of an adopted segment as unverified: they count for nothing until
  /// Verified() says so. `segment` outlives it.
  RankSlots(Segment& segment, uint64_t disk_every_steps, uint64_t peer_every_steps);

  Segment& segment() { return segment_; }
  void SetJobState(const JobState& job);
  /// What was agreed on with another life of the coordinator's store: nothing is freed until the
  /// next word.
  void ForgetJobState();
  /// The life that saves belong to from now on, and the one that seals without a life belong to.
  /// What is sealed of another one is written to disk and then gives way to saves.
  void SetLife(LifeId life, LifeId unlabeled);
  LifeId life();

  // ---- saves (session) ----

  /// Leases a slot, freeing what the policy allows (added to `freed`) when none is free.
  /// AlreadyExists: this step or a later one of the incarnation is saved; ResourceExhausted.
  Result<uint32_t> BeginSave(VersionId version, uint32_t world, uint64_t image_bytes,
                             std::vector<FreedSlot>* freed);
  /// The copy is complete: the sealer may seal.
  Status EndSave(uint32_t slot, VersionId version);
  /// The copy failed; the slot is free again once nobody follows it.
  Status AbandonSave(uint32_t slot, VersionId version, const Status& why);
  /// Gives up every save whose copy has not ended; returns their versions.
  std::vector<VersionId> AbortUnended(const Status& why);
  /// Gives up every unsealed save of an incarnation before `current`; returns their versions.
  std::vector<VersionId> AbortOlder(Incarnation current, const Status& why);
  /// Would BeginSave find a slot?
  bool HasRoom();

  // ---- sealer ----

  /// Waits for the next save; nothing when stopping.
  std::optional<SaveJob> TakeSave();
  struct SaveSignal {
    bool ended = false;
    Status given_up;  // not ok: stop working on it
  };
  SaveSignal Signal(uint32_t slot);
  /// Bytes [0, bytes) are checksummed; wakes the persister. False: the save was given up.
  bool PublishChecksummed(uint32_t slot, uint64_t bytes);
  /// Waits until the trainer says that the copy has ended (or the save was given up).
  Status AwaitEnd(uint32_t slot);
  /// Seals the slot in the ledger.
  Status SealSave(uint32_t slot, const ShardSeal& seal);
  /// The sealer lets go of a save it did not seal, because of `why`.
  void DropSave(uint32_t slot, const Status& why);

  // ---- persister ----

  /// Waits for the next version to write; nothing when stopping.
  std::optional<SaveJob> TakeDisk();
  struct DiskFollow {
    uint64_t checksummed = 0;
    bool sealed = false;
    bool given_up = false;
  };
  /// Waits until more than `seen` bytes are checksummed, or the save is sealed or given up.
  DiskFollow AwaitChecksummed(uint32_t slot, uint64_t seen);
  /// `given_up`: the save or the version was, so nothing was written.
  void FinishDisk(const SaveJob& job, bool given_up);

  // ---- peers ----

  /// The shard whose parity is to be made now: of those saved here, the first at or after the
  /// coordinator's target that is divisible by `every`. All ranks of the job choose the same. It is
  /// kept until the target moves past it or it is aborted.
  std::optional<ShardIdentity> DueForPeers();

  /// Waits until the version is being saved or is sealed here, and keeps its slot: Unpin() it.
  /// NotFound: it is not here and will not come. Cancelled when `cancelled` says so (see Wake).
  Result<uint32_t> Follow(VersionId version, const std::atomic<bool>& cancelled,
                          Clock::TimePoint deadline);
  /// Waits until bytes [0, until) of a followed slot are checksummed, or it is sealed: how many
  /// are. Aborted when the save was given up.
  Result<uint64_t> AwaitBytes(uint32_t slot, uint64_t until, const std::atomic<bool>& cancelled,
                              Clock::TimePoint deadline);
  /// As AwaitBytes, until the slot is sealed.
  Result<ShardSeal> AwaitSeal(uint32_t slot, const std::atomic<bool>& cancelled,
                              Clock::TimePoint deadline);
  /// Makes every wait look at its `cancelled` again.
  void Wake();

  // ---- restores, parity, checks, readers ----

  /// As BeginSave, for a shard that is brought back from elsewhere.
  Result<uint32_t> LeaseForRestore(VersionId version, uint32_t world, uint64_t image_bytes,
                                   std::vector<FreedSlot>* freed);
  Status SealRestored(uint32_t slot, const ShardSeal& seal);
  /// As SealRestored, for what was made here: it is still to be written to disk.
  Status SealBuilt(uint32_t slot, const ShardSeal& seal);
  void DropRestore(uint32_t slot);
  /// Which sealed slots are found: those known to be good; those bad in places as well; those that
  /// were not checked yet as well.
  enum class Find : uint8_t { kWhole, kDamagedToo, kUncheckedToo };
  /// Keeps the sealed slot of `version` from being freed. NotFound when memory has none.
  Result<uint32_t> Pin(VersionId version, Find find = Find::kWhole);
  void Unpin(uint32_t slot);
  /// The pinned slot is not to be freed when it is unpinned.
  bool Keeps(uint32_t slot);
  /// The pinned slot passed its checks: all of it is good, or is again.
  void Verified(uint32_t slot, bool on_disk);
  /// Some of the sealed slot is bad: it is offered to nobody as a whole until it is Verified();
  /// peers may read its good chunks. NotFound when memory does not hold the version, or this is
  /// known.
  Status MarkDamaged(VersionId version);
  /// Frees a sealed slot (damaged, or told to) as soon as nobody is at it, and offers it to nobody
  /// from now on. NotFound when memory does not hold the version.
  Status Discard(VersionId version);
  /// Frees every slot, if nobody is at any of them and each version may go, or, with `on_disk_too`,
  /// is committed on disk; returns their versions. FailedPrecondition says what stands in the way,
  /// and nothing is freed. For memory that is to be given to something else.
  Result<std::vector<VersionId>> Vacate(bool on_disk_too);
  /// Memory has the version, whole or not, checked or not.
  bool Has(VersionId version);
  /// Keeps `version` until the restore that it was prepared for is decided.
  void HoldForRestore(VersionId version);

  struct SlotStatus {
    SlotView view;
    uint64_t image_bytes = 0;
    uint64_t checksummed = 0;
    bool verified = false;
    std::string_view disk;
  };
  std::vector<SlotStatus> Snapshot();
  /// The incarnation of a save that is not sealed yet, or of what was not checked yet after a
  /// restart of the agent.
  std::optional<Incarnation> Unsealed();
  /// From now on the writer takes what is committed at memory, whatever the target says.
  void StartFlush();
  /// All of that is on disk, or cannot be.
  bool Flushed();
  /// Sealed and verified versions that no save may take.
  std::vector<VersionId> Kept();
  /// Sealed versions, newest first, with whether they are verified.
  std::vector<std::pair<VersionId, bool>> SealedVersions();

  /// Ends all waiting.
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
    bool damaged = false;  // sealed, and bad in places
    bool discard = false;  // sealed, to be freed when unused
    Status given_up;       // of an unsealed one
    Disk disk = Disk::kNone;
    LifeId life;
  };

  Result<uint32_t> Lease(VersionId version, uint32_t world, uint64_t image_bytes,
                         std::vector<FreedSlot>* freed, bool restore) HOLDFAST_REQUIRES(mutex_);
  std::vector<uint32_t> Freeable(VersionId for_restore) const HOLDFAST_REQUIRES(mutex_);
  std::optional<uint32_t> ToFlush() const HOLDFAST_REQUIRES(mutex_);
  Status CheckNewer(VersionId version) const HOLDFAST_REQUIRES(mutex_);
  std::vector<SlotView> Views() const HOLDFAST_REQUIRES(mutex_);
  void GiveUp(uint32_t slot, const Status& why) HOLDFAST_REQUIRES(mutex_);
  /// Gives the slot back if it is to go and nobody is at it.
  void FreeIfUnused(uint32_t slot) HOLDFAST_REQUIRES(mutex_);
  void Release(uint32_t slot) HOLDFAST_REQUIRES(mutex_);
  Status CheckOpenSave(uint32_t slot, VersionId version) const HOLDFAST_REQUIRES(mutex_);
  std::vector<DiskCandidate> DiskCandidates() const HOLDFAST_REQUIRES(mutex_);
  bool Aborted(VersionId version) const HOLDFAST_REQUIRES(mutex_);
  bool IsDueForPeers(VersionId version) const HOLDFAST_REQUIRES(mutex_);
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
  std::optional<VersionId> peer_version_ HOLDFAST_GUARDED_BY(mutex_);
  VersionId newest_sealed_ HOLDFAST_GUARDED_BY(mutex_);
  std::optional<VersionId> held_ HOLDFAST_GUARDED_BY(mutex_);
  bool flushing_ HOLDFAST_GUARDED_BY(mutex_) = false;
  LifeId life_ HOLDFAST_GUARDED_BY(mutex_);
  LifeId unlabeled_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast::agent
