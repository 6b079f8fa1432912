#pragma once

#include <cstdint>
#include <vector>

#include "agent/pipeline/slot_table.h"

namespace holdfast::agent {

/// The slots of one rank, as restores, rebuilds and parity builds use them: a slot is leased,
/// filled by the agent and sealed. Thread-safe.
class FillSlots {
 public:
  /// `table` outlives the object.
  explicit FillSlots(SlotTable& table) : table_(table) {}

  /// Leases a slot for a shard that is restored, rebuilt or built. When no slot is free, frees one
  /// as SaveSlots::BeginSave does and adds it to `freed`. For a parity shard, an older parity
  /// version that is not committed at peer may be freed as well, unless it is of another life and
  /// not on disk yet. The version need not be newer than the saved ones. ResourceExhausted: no slot
  /// is free.
  Result<uint32_t> LeaseToFill(VersionId version, uint32_t world, uint64_t image_bytes,
                               std::vector<FreedSlot>* freed);
  Status SealRestored(uint32_t slot, const ShardSeal& seal);
  /// As SealRestored, for a shard that was built here and still has to be written to disk.
  Status SealBuilt(uint32_t slot, const ShardSeal& seal);
  /// Frees a slot leased by LeaseToFill that was not sealed.
  void DropFilled(uint32_t slot);
  /// Keeps `version` from being freed until the restore that it was prepared for is decided.
  void HoldForRestore(VersionId version);

 private:
  Status SealFilled(uint32_t slot, const ShardSeal& seal, SlotTable::Disk disk)
      HOLDFAST_REQUIRES(table_.mutex);

  SlotTable& table_;
};

}  // namespace holdfast::agent
