#pragma once

#include <memory>
#include <string>

#include "agent/arena/arena.h"
#include "agent/arena/keeper_client.h"
#include "agent/arena/ledger.h"
#include "agent/arena/memory_file.h"
#include "base/mutex.h"

namespace holdfast::agent {

/// A Segment over two memory files, which it unmaps and closes on destruction. The memory stays
/// allocated as long as the keeper or a trainer holds it.
class MappedSegment : public Segment {
 public:
  /// Allocates a segment with free slots. The caller still has to pass it to the keeper.
  static Result<std::unique_ptr<MappedSegment>> Create(const SegmentShape& shape);
  /// Adopts memory that a keeper held. Leased slots and slots with a damaged record (logged) become
  /// free; sealed ones stay. DataLoss or Unsupported when the segment cannot be used at all.
  static Result<std::unique_ptr<MappedSegment>> Adopt(KeptEntry entry);

  uint64_t id() const override { return shape_.id; }
  const SegmentOwner& owner() const override { return shape_.owner; }
  uint32_t slot_count() const override { return shape_.slots; }
  uint64_t slot_bytes() const override { return shape_.slot_bytes; }
  InvariantMonitor& invariants() const override { return invariants_; }
  int fd() const override { return memory_.fd(); }
  std::span<std::byte> memory() override { return memory_.memory(); }
  std::span<std::byte> slot(uint32_t index) override;
  SlotProgress& progress(uint32_t index) override;
  SegmentControl& control() override;
  SlotRecord record(uint32_t index) const override;
  Result<ShardSeal> seal(uint32_t index) const override;
  Result<uint32_t> Lease(VersionId version, uint32_t world, uint64_t image_bytes) override;
  Status Abandon(uint32_t index) override;
  Status Seal(uint32_t index, const ShardSeal& seal) override;
  Status Free(uint32_t index) override;

  int ledger_fd() const { return ledger_memory_.fd(); }
  uint64_t bytes() const { return shape_.segment_bytes(); }
  /// Returns the name of the keeper's entry: "segment-<ID in hex>".
  std::string kept_name() const;
  /// Returns a text for the operator, such as "job/rank-3".
  std::string note() const;
  /// Returns an empty text when all slots are free. Otherwise lists what the slots hold: "slot 0
  /// sealed 3-120, slot 2 leased 3-121".
  std::string DescribeHeld() const;

 private:
  MappedSegment(MemoryFile memory, MemoryFile ledger_memory, Ledger ledger);
  /// Returns FailedPrecondition, with the slot's state, unless the state is `wanted`.
  Status Expect(uint32_t index, SlotState wanted, std::string_view action) const
      HOLDFAST_REQUIRES(mutex_);
  void DropUnfinished();
  /// Checks that the ledger has the record that was just written.
  void CheckWritten(uint32_t index, const SlotRecord& expected) const HOLDFAST_REQUIRES(mutex_);
  /// Returns an error if another caller has changed the record that a change is based on.
  Status CheckRecord(uint32_t index) const HOLDFAST_REQUIRES(mutex_);

  MemoryFile memory_;
  MemoryFile ledger_memory_;
  const SegmentShape shape_;
  mutable InvariantMonitor invariants_;
  mutable Mutex mutex_;
  Ledger ledger_ HOLDFAST_GUARDED_BY(mutex_);
};

std::string_view NameOf(SlotState state);

}  // namespace holdfast::agent
