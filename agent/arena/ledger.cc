#include "agent/arena/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "agent/api/messages.h"
#include "base/crash_point.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {
constexpr uint64_t kLedgerMagic = 0x5245474445'4C4648;  // "HFLEDGER"
constexpr uint64_t kHeaderSpace = 4096;

struct Header {
  uint64_t magic = kLedgerMagic;
  uint32_t format = kLedgerFormat;
  uint32_t slots = 0;
  uint64_t segment_id = 0;
  uint64_t control_bytes = kControlBytes;
  uint64_t slot_bytes = 0;
  uint64_t ledger_bytes = 0;
  uint32_t rank = 0;
  uint32_t uid = 0;
  char job[kNameBytes] = {};
  char padding[3] = {};
  uint32_t crc = 0;  // of all bytes before it
};
static_assert(sizeof(Header) == 192 && std::has_unique_object_representations_v<Header>);

// The input of a slot's checksums. It includes the segment and the slot, so that a record copied to
// another slot does not match.
struct LeaseFields {
  uint64_t segment_id;
  uint64_t incarnation;
  uint64_t step;
  uint64_t image_bytes;
  uint32_t slot;
  uint32_t world;
};
struct SealFields {
  uint32_t lease_crc;
  uint32_t chunk_count;
  int64_t wall_nanos;
  uint32_t table_crc;
  uint32_t zero;
};
struct SealFieldsWithLife {
  SealFields fields;
  uint64_t life;
};

// The state with its complement, so that a damaged word is not a valid state.
constexpr uint64_t StateWord(SlotState state) {
  auto number = static_cast<uint32_t>(state);
  return number | static_cast<uint64_t>(~number) << 32;
}

template <typename T>
uint32_t CrcOf(const T& fields) {
  static_assert(std::has_unique_object_representations_v<T>);
  return Crc32c(std::as_bytes(std::span(&fields, 1)));
}

uint32_t HeaderCrc(const Header& header) {
  return Crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, crc)));
}
}  // namespace

struct alignas(64) Ledger::Slot {
  std::atomic<uint64_t> state;
  uint64_t incarnation;
  uint64_t step;
  uint64_t image_bytes;
  int64_t wall_nanos;
  uint32_t world;
  uint32_t chunk_count;
  uint32_t lease_crc;
  uint32_t seal_crc;
  uint64_t life;  // from format 2 on
};

namespace {
constexpr uint64_t kSlotHeadBytes = 64;
uint64_t StrideFor(uint64_t slot_bytes) {
  return RoundUp(kSlotHeadBytes + ChunkCount(slot_bytes) * sizeof(uint32_t), kSlotHeadBytes);
}
}  // namespace

uint64_t Ledger::BytesFor(uint32_t slots, uint64_t slot_bytes) {
  return RoundUp(kHeaderSpace + slots * StrideFor(slot_bytes), kHeaderSpace);
}

Ledger Ledger::Make(std::span<std::byte> memory, const SegmentShape& shape) {
  Ledger ledger(memory, shape);
  for (uint32_t slot = 0; slot < shape.slots; ++slot) ledger.WriteFree(slot);
  Header header;
  header.slots = shape.slots;
  header.segment_id = shape.id;
  header.slot_bytes = shape.slot_bytes;
  header.ledger_bytes = memory.size();
  header.rank = shape.owner.rank.value;
  header.uid = shape.owner.uid;
  PutText(header.job, shape.owner.job);
  header.crc = HeaderCrc(header);
  std::memcpy(memory.data(), &header, sizeof(header));
  return ledger;
}

Result<Ledger> Ledger::Read(std::span<std::byte> memory) {
  Header header;
  if (memory.size() < kHeaderSpace) return Fail(DataLossError("a ledger is shorter than a page"));
  std::memcpy(&header, memory.data(), sizeof(header));
  if (header.magic != kLedgerMagic) return Fail(DataLossError("a ledger has the wrong magic"));
  if (header.format > kLedgerFormat) {
    return Fail(UnsupportedError(
        fmt::format("a ledger has format {}, but this release supports formats up to {}",
                    header.format, kLedgerFormat)));
  }
  if (header.crc != HeaderCrc(header)) {
    return Fail(DataLossError("a ledger's header does not match its checksum"));
  }
  SegmentShape shape{.id = header.segment_id,
                     .owner = {.job = GetText(header.job),
                               .rank = Rank{header.rank},
                               .uid = static_cast<uid_t>(header.uid)},
                     .slots = header.slots,
                     .slot_bytes = header.slot_bytes,
                     .format = header.format};
  Status named = ValidateName("a ledger's job", shape.owner.job);
  if (!named.ok() || shape.format == 0 || shape.slots == 0 || shape.slots > kSlotsMax ||
      header.control_bytes != kControlBytes || shape.slot_bytes == 0 ||
      shape.slot_bytes > kSlotBytesMax || shape.slot_bytes % kSlotAlign != 0 ||
      header.ledger_bytes != memory.size() ||
      BytesFor(shape.slots, shape.slot_bytes) != memory.size()) {
    return Fail(DataLossError("a ledger's header has inconsistent numbers"));
  }
  return Ledger(memory, std::move(shape));
}

Ledger::Slot& Ledger::At(uint32_t slot) const {
  static_assert(sizeof(Slot) == kSlotHeadBytes);
  return *reinterpret_cast<Slot*>(memory_.data() + kHeaderSpace +
                                  slot * StrideFor(shape_.slot_bytes));
}

std::span<uint32_t> Ledger::TableOf(uint32_t slot) const {
  auto* table =
      reinterpret_cast<uint32_t*>(reinterpret_cast<std::byte*>(&At(slot)) + kSlotHeadBytes);
  return {table, ChunkCount(shape_.slot_bytes)};
}

SlotState Ledger::state(uint32_t slot) const {
  uint64_t word = At(slot).state.load(std::memory_order_acquire);
  for (SlotState state : {SlotState::kLeased, SlotState::kSealed}) {
    if (word == StateWord(state)) return state;
  }
  return SlotState::kFree;
}

SlotRecord Ledger::record(uint32_t slot) const {
  SlotRecord record{.state = state(slot), .version = {}};
  if (record.state == SlotState::kFree) return record;
  const Slot& at = At(slot);
  record.version = {Incarnation{at.incarnation}, Step{at.step}};
  record.world = at.world;
  record.image_bytes = at.image_bytes;
  if (record.state == SlotState::kSealed && shape_.format > 1) record.life = LifeId{at.life};
  return record;
}

uint32_t Ledger::LeaseCrc(uint32_t slot) const {
  const Slot& at = At(slot);
  return CrcOf(LeaseFields{.segment_id = shape_.id,
                           .incarnation = at.incarnation,
                           .step = at.step,
                           .image_bytes = at.image_bytes,
                           .slot = slot,
                           .world = at.world});
}

uint32_t Ledger::SealCrc(uint32_t slot) const {
  const Slot& at = At(slot);
  const SealFields fields{.lease_crc = at.lease_crc,
                          .chunk_count = at.chunk_count,
                          .wall_nanos = at.wall_nanos,
                          .table_crc = Crc32c(std::as_bytes(TableOf(slot).first(at.chunk_count))),
                          .zero = 0};
  return shape_.format == 1 ? CrcOf(fields) : CrcOf(SealFieldsWithLife{fields, at.life});
}

Status Ledger::Check(uint32_t slot) const {
  const Slot& at = At(slot);
  uint64_t word = at.state.load(std::memory_order_acquire);
  if (word == StateWord(SlotState::kFree)) return Status::Ok();
  bool sealed = word == StateWord(SlotState::kSealed);
  if (!sealed && word != StateWord(SlotState::kLeased)) {
    return DataLossError(fmt::format("slot {} has the damaged state {:#x}", slot, word));
  }
  bool valid =
      at.image_bytes > 0 && at.image_bytes <= shape_.slot_bytes && at.lease_crc == LeaseCrc(slot);
  if (valid && sealed) {
    valid = at.chunk_count == ChunkCount(at.image_bytes) && at.seal_crc == SealCrc(slot);
  }
  if (valid) return Status::Ok();
  return DataLossError(fmt::format("the record of slot {} does not match its checksum", slot));
}

Result<ShardSeal> Ledger::ReadSeal(uint32_t slot) const {
  if (state(slot) != SlotState::kSealed) {
    return Fail(FailedPreconditionError(fmt::format("slot {} is not sealed", slot)));
  }
  HOLDFAST_RETURN_IF_ERROR(Check(slot));
  const Slot& at = At(slot);
  ShardSeal seal;
  seal.identity = {.job = shape_.owner.job,
                   .version = {Incarnation{at.incarnation}, Step{at.step}},
                   .rank = shape_.owner.rank,
                   .world = at.world};
  seal.life = LifeId{shape_.format == 1 ? 0 : at.life};
  seal.image_bytes = at.image_bytes;
  auto table = TableOf(slot).first(at.chunk_count);
  seal.chunk_crcs.assign(table.begin(), table.end());
  seal.wall_nanos = at.wall_nanos;
  return seal;
}

// Readers use a slot's fields only in states that are stored after the fields, so they never see a
// half-written record: the change takes effect with the store of the state. A killed process has
// executed its instructions up to some point, so only the compiler could reorder the stores.
void Ledger::SetState(uint32_t slot, SlotState state) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  At(slot).state.store(StateWord(state), std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void Ledger::WriteLeased(uint32_t slot, const SlotRecord& record) {
  Slot& at = At(slot);
  at.incarnation = record.version.incarnation.value;
  at.step = record.version.step.value;
  at.image_bytes = record.image_bytes;
  at.world = record.world;
  at.lease_crc = LeaseCrc(slot);
  SetState(slot, SlotState::kLeased);
}

void Ledger::WriteSealed(uint32_t slot, const ShardSeal& seal) {
  Slot& at = At(slot);
  at.wall_nanos = seal.wall_nanos;
  at.chunk_count = static_cast<uint32_t>(seal.chunk_crcs.size());
  std::copy(seal.chunk_crcs.begin(), seal.chunk_crcs.end(), TableOf(slot).begin());
  if (shape_.format > 1) at.life = seal.life.value;
  at.seal_crc = SealCrc(slot);
  HOLDFAST_CRASH_POINT("arena.mid_seal");
  SetState(slot, SlotState::kSealed);
}

void Ledger::WriteFree(uint32_t slot) { SetState(slot, SlotState::kFree); }

}  // namespace holdfast::agent
