#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "agent/pipeline/slot_table.h"

namespace holdfast::agent {

/// The slots of one rank, as the session of its trainer uses them: saves begin and end.
/// Thread-safe.
class SaveSlots {
 public:
  /// `table` outlives the object.
  explicit SaveSlots(SlotTable& table) : table_(table) {}

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

 private:
  Status CheckNewer(VersionId version) const HOLDFAST_REQUIRES(table_.mutex);
  Status CheckOpenSave(uint32_t slot, VersionId version) const HOLDFAST_REQUIRES(table_.mutex);

  SlotTable& table_;
};

/// The slots of one rank, as its sealer uses them. Thread-safe.
class SealSlots {
 public:
  /// `table` outlives the object.
  explicit SealSlots(SlotTable& table) : table_(table) {}
  Segment& segment() { return table_.segment; }

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

 private:
  /// Checks that everything that a seal states about the slot is true.
  void CheckSealable(uint32_t slot, const ShardSeal& seal) const HOLDFAST_REQUIRES(table_.mutex);

  SlotTable& table_;
};

}  // namespace holdfast::agent
