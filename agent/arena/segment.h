#pragma once

#include <memory>
#include <string>

#include "agent/arena/arena.h"
#include "agent/arena/keeper_client.h"
#include "agent/arena/ledger.h"
#include "agent/arena/memory_file.h"
#include "storage/base/mutex.h"

namespace holdfast::agent {

/// A Segment over two memory files. It unmaps and closes them on destruction; the memory lives on
/// while the keeper or a trainer has it.
class MappedSegment : public Segment {
 public:
  /// New memory, all slots free. The keeper does not know it yet.
  static Result<std::unique_ptr<MappedSegment>> Create(const SegmentShape& shape);
  /// Memory that a keeper held. Leased slots become free, and so do slots whose record is damaged
  /// (logged); sealed ones stay. DataLoss or Unsupported when the whole cannot be used.
  static Result<std::unique_ptr<MappedSegment>> Adopt(KeptEntry entry);

  uint64_t id() const override { return shape_.id; }
  const SegmentOwner& owner() const override { return shape_.owner; }
  uint32_t slot_count() const override { return shape_.slots; }
  uint64_t slot_bytes() const override { return shape_.slot_bytes; }
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
  /// Under which the keeper holds it: "segment-<id in hex>".
  std::string kept_name() const;
  /// "job/rank-3", for people who look at a keeper.
  std::string note() const;
  /// Empty when all slots are free, else what they hold: "slot 0 sealed 3-120, slot 2 leased
  /// 3-121".
  std::string DescribeHeld() const;

 private:
  MappedSegment(MemoryFile memory, MemoryFile ledger_memory, Ledger ledger);
  /// FailedPrecondition naming the slot's state unless it is `wanted`.
  Status Expect(uint32_t index, SlotState wanted, std::string_view action) const
      HOLDFAST_REQUIRES(mutex_);
  void DropUnfinished();

  MemoryFile memory_;
  MemoryFile ledger_memory_;
  const SegmentShape shape_;
  mutable Mutex mutex_;
  Ledger ledger_ HOLDFAST_GUARDED_BY(mutex_);
};

std::string_view NameOf(SlotState state);

}  // namespace holdfast::agent
