#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "agent/arena/arena.h"
#include "agent/pipeline/change_signal.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/disk_pace.h"
#include "agent/pipeline/slot_policy.h"
#include "base/mutex.h"

namespace holdfast::agent {

/// A sealed slot that was freed for something newer.
struct FreedSlot {
  VersionId version;
  bool disk_missed = false;      // eligible for disk, but its write had not begun
  bool disk_superseded = false;  // not written to disk: a newer version is written instead
};

/// A save in progress in the sealer and the persister.
struct SaveJob {
  uint32_t slot = 0;
  ShardIdentity identity;
  uint64_t image_bytes = 0;
  LifeId life;
};

/// The users and the progress of one rank's slots: the state that the roles (SaveSlots, SealSlots,
/// DiskSlots, PeerSlots, FillSlots, SlotPins, SlotView) share, with the rules that concern more
/// than one of them. The ledger (Segment) stores the slots' contents across restarts; this is the
/// state of the running process. A slot is freed only when it has no users. Once an invariant of
/// the segment is violated, no slot changes any more, and the roles refuse every request.
///
/// The caller holds `mutex`, and only for bookkeeping, never during checksums, copies or I/O. It is
/// taken before the mutex of the segment and that of `peer_versions`.
struct SlotTable {
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

    /// Whether a trainer copies into the slot, or has copied, and the sealer may still seal it.
    bool IsSaving() const { return phase == Phase::kCopying && given_up.ok(); }
  };

  SlotTable(Segment& segment_in, uint64_t disk_every_steps, uint64_t peer_every_steps,
            ChangeSignal& peer_versions_in);

  /// Leases a slot of the segment. When none is free, frees one that the policy allows and adds it
  /// to `freed`.
  Result<uint32_t> Lease(VersionId version, uint32_t world, uint64_t image_bytes,
                         std::vector<FreedSlot>* freed, bool restore) HOLDFAST_REQUIRES(mutex);
  /// Returns the state of each slot, as the policy needs it.
  std::vector<SlotInfo> Infos() const HOLDFAST_REQUIRES(mutex);
  /// Gives up an unsealed save.
  void GiveUp(uint32_t slot, const Status& why) HOLDFAST_REQUIRES(mutex);
  /// Frees the slot if it has no users and was given up or discarded.
  void FreeIfUnused(uint32_t slot) HOLDFAST_REQUIRES(mutex);
  /// Ends one use of the slot.
  void Release(uint32_t slot) HOLDFAST_REQUIRES(mutex);
  /// Chooses the version whose parity is to be built now, after any change of its candidates.
  void ChoosePeerVersion() HOLDFAST_REQUIRES(mutex);
  bool Aborted(VersionId version) const HOLDFAST_REQUIRES(mutex);
  bool IsOfOtherLife(const Entry& entry) const HOLDFAST_REQUIRES(mutex);
  SaveJob JobOf(uint32_t slot) const HOLDFAST_REQUIRES(mutex);
  /// Whether the threads of the rank end: the agent stops, or an invariant of the rank is violated.
  bool Stopped() const HOLDFAST_REQUIRES(mutex) {
    return stopping || segment.invariants().violated();
  }
  const JobState* job() const HOLDFAST_REQUIRES(mutex) { return job_state ? &*job_state : nullptr; }

  Segment& segment;
  Mutex mutex;
  CondVar changed;
  std::vector<Entry> entries HOLDFAST_GUARDED_BY(mutex);
  std::optional<JobState> job_state HOLDFAST_GUARDED_BY(mutex);
  DiskPace pace HOLDFAST_GUARDED_BY(mutex);
  const uint64_t peer_every;
  ChangeSignal& peer_versions;
  std::optional<VersionId> peer_version HOLDFAST_GUARDED_BY(mutex);
  VersionId newest_sealed HOLDFAST_GUARDED_BY(mutex);
  std::optional<VersionId> held HOLDFAST_GUARDED_BY(mutex);
  LifeId life HOLDFAST_GUARDED_BY(mutex);
  LifeId unlabeled HOLDFAST_GUARDED_BY(mutex);
  bool stopping HOLDFAST_GUARDED_BY(mutex) = false;

 private:
  std::vector<uint32_t> Freeable(VersionId for_restore) const HOLDFAST_REQUIRES(mutex);
  bool IsEligibleForPeers(VersionId version) const HOLDFAST_REQUIRES(mutex);
};

}  // namespace holdfast::agent
