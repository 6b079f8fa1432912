#include "agent/arena/segment.h"

#include <fmt/format.h>

#include <utility>

#include "base/config.h"
#include "base/crash_point.h"
#include "base/log.h"

namespace holdfast::agent {

std::string_view NameOf(SlotState state) {
  switch (state) {
    case SlotState::kFree:
      return "free";
    case SlotState::kLeased:
      return "leased";
    case SlotState::kSealed:
      return "sealed";
  }
  return "damaged";
}

MappedSegment::MappedSegment(MemoryFile memory, MemoryFile ledger_memory, Ledger ledger)
    : memory_(std::move(memory)),
      ledger_memory_(std::move(ledger_memory)),
      shape_(ledger.shape()),
      invariants_(shape_.owner.job + "/" + ShardName(shape_.owner.rank)),
      ledger_(std::move(ledger)) {}

Result<std::unique_ptr<MappedSegment>> MappedSegment::Create(const SegmentShape& shape) {
  std::string name = fmt::format("holdfast-{}-{}", shape.owner.job, shape.owner.rank.value);
  HOLDFAST_ASSIGN_OR_RETURN(MemoryFile memory, MemoryFile::Create(name, shape.segment_bytes()));
  HOLDFAST_ASSIGN_OR_RETURN(
      MemoryFile ledger_memory,
      MemoryFile::Create(name + "-ledger", Ledger::BytesFor(shape.slots, shape.slot_bytes)));
  Ledger ledger = Ledger::Make(ledger_memory.memory(), shape);
  // Private constructor: make_unique cannot reach it.
  return std::unique_ptr<MappedSegment>(
      new MappedSegment(std::move(memory), std::move(ledger_memory), std::move(ledger)));
}

Result<std::unique_ptr<MappedSegment>> MappedSegment::Adopt(KeptEntry entry) {
  if (entry.fds.size() != 2) {
    return Fail(
        DataLossError(fmt::format("{} has {} descriptors, expected the segment and its "
                                  "ledger",
                                  entry.name, entry.fds.size())));
  }
  HOLDFAST_ASSIGN_OR_RETURN(MemoryFile memory, MemoryFile::Adopt(std::move(entry.fds[0])));
  HOLDFAST_ASSIGN_OR_RETURN(MemoryFile ledger_memory, MemoryFile::Adopt(std::move(entry.fds[1])));
  HOLDFAST_ASSIGN_OR_RETURN(Ledger ledger, Ledger::Read(ledger_memory.memory()));
  if (memory.memory().size() != ledger.shape().segment_bytes()) {
    return Fail(DataLossError(fmt::format("a segment has {} bytes, but its ledger has {}",
                                          memory.memory().size(), ledger.shape().segment_bytes())));
  }
  std::unique_ptr<MappedSegment> segment(
      new MappedSegment(std::move(memory), std::move(ledger_memory), std::move(ledger)));
  if (segment->kept_name() != entry.name) {
    return Fail(
        DataLossError(fmt::format("{} holds the ledger of {}", entry.name, segment->kept_name())));
  }
  segment->DropUnfinished();
  return segment;
}

void MappedSegment::DropUnfinished() {
  MutexLock lock(mutex_);
  for (uint32_t i = 0; i < shape_.slots; ++i) {
    Status status = ledger_.Check(i);
    if (!status.ok()) {
      Log(LogLevel::kError, "SlotRecordDamaged",
          {Kv("segment", note()), Kv("error", status.ToString())});
    }
    if (!status.ok() || ledger_.state(i) == SlotState::kLeased) ledger_.WriteFree(i);
  }
}

std::span<std::byte> MappedSegment::slot(uint32_t index) {
  // After a violation the segment serves nothing, so slot 0 is only a safe address.
  const bool exists = HOLDFAST_INVARIANT(invariants_, index < shape_.slots, Kv("slot", index));
  const uint64_t offset = kControlBytes + (exists ? index : 0) * shape_.slot_bytes;
  return memory_.memory().subspan(offset, shape_.slot_bytes);
}

SlotProgress& MappedSegment::progress(uint32_t index) {
  const bool exists = HOLDFAST_INVARIANT(invariants_, index < shape_.slots, Kv("slot", index));
  return control().slots[exists ? index : 0];
}

SegmentControl& MappedSegment::control() {
  return *reinterpret_cast<SegmentControl*>(memory_.memory().data());
}

SlotRecord MappedSegment::record(uint32_t index) const {
  if (!HOLDFAST_INVARIANT(invariants_, index < shape_.slots, Kv("slot", index))) return {};
  MutexLock lock(mutex_);
  return ledger_.record(index);
}

Result<ShardSeal> MappedSegment::seal(uint32_t index) const {
  MutexLock lock(mutex_);
  HOLDFAST_RETURN_IF_ERROR(Expect(index, SlotState::kSealed, "read its seal"));
  HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, ledger_.ReadSeal(index));
  // The same statements as at the write in Seal(): the record must not change in between.
  const bool whole =
      HOLDFAST_INVARIANT(invariants_, seal.chunk_crcs.size() == ChunkCount(seal.image_bytes),
                         Kv("slot", index), Kv("chunks", seal.chunk_crcs.size()),
                         Kv("bytes", seal.image_bytes)) &&
      HOLDFAST_INVARIANT(invariants_, seal.image_bytes <= shape_.slot_bytes, Kv("slot", index),
                         Kv("bytes", seal.image_bytes)) &&
      HOLDFAST_INVARIANT(invariants_, seal.identity.rank == shape_.owner.rank, Kv("slot", index));
  if (!whole) return Fail(invariants_.error());
  return seal;
}

Result<uint32_t> MappedSegment::Lease(VersionId version, uint32_t world, uint64_t image_bytes) {
  if (image_bytes == 0 || image_bytes > shape_.slot_bytes) {
    return Fail(InvalidArgumentError(
        fmt::format("an image of {} bytes does not fit the slots of {}, which have {} bytes",
                    image_bytes, note(), shape_.slot_bytes)));
  }
  MutexLock lock(mutex_);
  for (uint32_t i = 0; i < shape_.slots; ++i) {
    if (ledger_.state(i) != SlotState::kFree) continue;
    progress(i).copied.store(0, std::memory_order_relaxed);
    ledger_.WriteLeased(i, {.state = SlotState::kLeased,
                            .version = version,
                            .world = world,
                            .image_bytes = image_bytes});
    CheckWritten(i, {.state = SlotState::kLeased,
                     .version = version,
                     .world = world,
                     .image_bytes = image_bytes});
    HOLDFAST_CRASH_POINT("arena.after_lease");
    return i;
  }
  return Fail(ResourceExhaustedError(
      fmt::format("none of the {} slots of {} is free", shape_.slots, note())));
}

Status MappedSegment::Expect(uint32_t index, SlotState wanted, std::string_view action) const {
  if (index >= shape_.slots) {
    return InvalidArgumentError(
        fmt::format("{} has {} slots; there is no slot {}", note(), shape_.slots, index));
  }
  SlotState state = ledger_.state(index);
  if (state == wanted) return Status::Ok();
  return FailedPreconditionError(fmt::format("slot {} of {} is {}, not {}: cannot {}", index,
                                             note(), NameOf(state), NameOf(wanted), action));
}

void MappedSegment::CheckWritten(uint32_t index, const SlotRecord& expected) const {
  const SlotRecord found = ledger_.record(index);
  HOLDFAST_INVARIANT(invariants_, found.state == expected.state, Kv("slot", index),
                     Kv("found", NameOf(found.state)), Kv("written", NameOf(expected.state)));
  HOLDFAST_INVARIANT(invariants_, ledger_.Check(index).ok(), Kv("slot", index));
  if (expected.state == SlotState::kFree) return;
  HOLDFAST_INVARIANT(invariants_, found.version == expected.version, Kv("slot", index),
                     Kv("found", ToString(found.version)),
                     Kv("written", ToString(expected.version)));
  HOLDFAST_INVARIANT(invariants_, found.image_bytes == expected.image_bytes, Kv("slot", index),
                     Kv("found", found.image_bytes), Kv("written", expected.image_bytes));
  HOLDFAST_INVARIANT(invariants_, found.image_bytes <= shape_.slot_bytes, Kv("slot", index),
                     Kv("bytes", found.image_bytes));
}

Status MappedSegment::CheckRecord(uint32_t index) const {
  // Adopt() has freed every slot with a damaged record, and only this object writes the ledger.
  const Status intact = ledger_.Check(index);
  if (HOLDFAST_INVARIANT(invariants_, intact.ok(), Kv("slot", index),
                         Kv("error", intact.message()))) {
    return Status::Ok();
  }
  return invariants_.error();
}

Status MappedSegment::Abandon(uint32_t index) {
  MutexLock lock(mutex_);
  HOLDFAST_RETURN_IF_ERROR(Expect(index, SlotState::kLeased, "abandon it"));
  ledger_.WriteFree(index);
  CheckWritten(index, {.state = SlotState::kFree, .version = {}});
  return Status::Ok();
}

Status MappedSegment::Seal(uint32_t index, const ShardSeal& seal) {
  MutexLock lock(mutex_);
  HOLDFAST_RETURN_IF_ERROR(Expect(index, SlotState::kLeased, "seal it"));
  HOLDFAST_RETURN_IF_ERROR(CheckRecord(index));
  SlotRecord record = ledger_.record(index);
  ShardIdentity leased{.job = shape_.owner.job,
                       .version = record.version,
                       .rank = shape_.owner.rank,
                       .world = record.world};
  if (seal.identity != leased || seal.image_bytes != record.image_bytes) {
    return InvalidArgumentError(fmt::format(
        "a seal of {} ({} ranks, {} bytes) does not match the lease of slot {}: {} ({} ranks, {} "
        "bytes)",
        ToString(seal.identity.key()), seal.identity.world, seal.image_bytes, index,
        ToString(leased.key()), leased.world, record.image_bytes));
  }
  if (seal.chunk_crcs.size() != ChunkCount(seal.image_bytes) || !seal.parts.empty() ||
      !seal.image_header.empty()) {
    return InvalidArgumentError(
        fmt::format("the seal needs {} chunk checksums and no parts, but has {} and {}",
                    ChunkCount(seal.image_bytes), seal.chunk_crcs.size(), seal.parts.size()));
  }
  ledger_.WriteSealed(index, seal);
  record.state = SlotState::kSealed;
  CheckWritten(index, record);
  HOLDFAST_CRASH_POINT("arena.after_seal");
  return Status::Ok();
}

Status MappedSegment::Free(uint32_t index) {
  MutexLock lock(mutex_);
  HOLDFAST_RETURN_IF_ERROR(Expect(index, SlotState::kSealed, "free it"));
  ledger_.WriteFree(index);
  CheckWritten(index, {.state = SlotState::kFree, .version = {}});
  HOLDFAST_CRASH_POINT("arena.after_free");
  return Status::Ok();
}

std::string MappedSegment::kept_name() const { return fmt::format("segment-{:016x}", shape_.id); }

std::string MappedSegment::note() const {
  return shape_.owner.job + "/" + ShardName(shape_.owner.rank);
}

std::string MappedSegment::DescribeHeld() const {
  MutexLock lock(mutex_);
  std::string text;
  for (uint32_t i = 0; i < shape_.slots; ++i) {
    SlotRecord record = ledger_.record(i);
    if (record.state == SlotState::kFree) continue;
    if (!text.empty()) text += ", ";
    text += fmt::format("slot {} {} {}", i, NameOf(record.state), ToString(record.version));
  }
  return text;
}

}  // namespace holdfast::agent
