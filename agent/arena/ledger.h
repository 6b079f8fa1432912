#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "agent/arena/arena.h"
#include "base/status.h"
#include "storage/format/seal.h"

namespace holdfast::agent {

inline constexpr uint32_t kLedgerFormat = 2;

/// The fixed properties of a segment, from its ledger's header.
struct SegmentShape {
  uint64_t id = 0;
  SegmentOwner owner;
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
  /// 1: made by an older agent. Format 1 does not store a life, so its sealed slots have none.
  uint32_t format = kLedgerFormat;

  uint64_t segment_bytes() const { return kControlBytes + slots * slot_bytes; }
};

/// The records of a segment's slots, in memory that outlives this process. Each change writes the
/// record first and then, with one store, the slot's state: a process killed between any two
/// instructions leaves the old state or the new one, each with a complete record. Format:
/// docs/formats/ledger.md. Thread-compatible. A ledger does not own `memory`, which must outlive
/// it.
class Ledger {
 public:
  static uint64_t BytesFor(uint32_t slots, uint64_t slot_bytes);
  /// Writes a ledger of free slots to `memory`, which has BytesFor() zero bytes.
  static Ledger Make(std::span<std::byte> memory, const SegmentShape& shape);
  /// Reads a ledger. DataLoss when the header is damaged or its numbers do not fit `memory`;
  /// Unsupported for a newer format.
  static Result<Ledger> Read(std::span<std::byte> memory);

  const SegmentShape& shape() const { return shape_; }
  /// Returns the slot's state. A damaged state reads as free; Check() detects it.
  SlotState state(uint32_t slot) const;
  SlotRecord record(uint32_t slot) const;
  /// Verifies the slot's record. DataLoss when it does not match its checksums.
  Status Check(uint32_t slot) const;
  /// Returns the seal of a sealed slot. FailedPrecondition in another state, DataLoss as Check().
  Result<ShardSeal> ReadSeal(uint32_t slot) const;

  void WriteLeased(uint32_t slot, const SlotRecord& record);
  void WriteSealed(uint32_t slot, const ShardSeal& seal);
  void WriteFree(uint32_t slot);

 private:
  struct Slot;
  Ledger(std::span<std::byte> memory, SegmentShape shape)
      : memory_(memory), shape_(std::move(shape)) {}
  Slot& At(uint32_t slot) const;
  std::span<uint32_t> TableOf(uint32_t slot) const;
  void SetState(uint32_t slot, SlotState state);
  uint32_t LeaseCrc(uint32_t slot) const;
  uint32_t SealCrc(uint32_t slot) const;

  std::span<std::byte> memory_;
  SegmentShape shape_;
};

}  // namespace holdfast::agent
