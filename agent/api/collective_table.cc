#include "agent/api/collective_table.h"

namespace holdfast::agent {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
// For the fields behind a tag: stores follow the tag that forbids reading, loads precede the second
// read of the tag. ThreadSanitizer does not support fences, so there are none.
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

static_assert(sizeof(CollectiveRecord) == 128 && sizeof(PeerCell) == 64);
static_assert(sizeof(CommunicatorEntry) == 1152 && offsetof(CommunicatorEntry, members) == 112);
static_assert(sizeof(ProgressEntry) == 64 && sizeof(DropCounts) == 64);
static_assert(offsetof(CollectiveTable, sampling) == 64);
static_assert(offsetof(CollectiveTable, ring_head) == 128);
static_assert(offsetof(CollectiveTable, progress) == 192);
static_assert(offsetof(CollectiveTable, drops) == 256);
static_assert(offsetof(CollectiveTable, steps) == 320 && sizeof(StepRecord) == 32);
static_assert(offsetof(CollectiveTable, peers) == 2368);
static_assert(offsetof(CollectiveTable, communicators) == 67'904);
static_assert(offsetof(CollectiveTable, in_flight) == 215'360);
static_assert(offsetof(CollectiveTable, ring) == 346'432);
static_assert(sizeof(CollectiveTable) == 870'720);

uint64_t PackWhat(const CollectiveValues& values) {
  return uint64_t{static_cast<uint8_t>(values.kind)} | uint64_t{values.dtype} << 8 |
         uint64_t{static_cast<uint8_t>(values.algorithm)} << 16 |
         uint64_t{static_cast<uint8_t>(values.protocol)} << 24 | uint64_t{values.channels} << 32 |
         uint64_t{static_cast<uint8_t>(values.source)} << 40 | uint64_t{values.flags} << 48;
}
}  // namespace

void StoreValues(CollectiveRecord& record, const CollectiveValues& values) {
  record.communicator.store(values.communicator, kRelease);
  record.sequence.store(values.sequence, kRelease);
  record.bytes.store(values.bytes, kRelease);
  record.step.store(values.step, kRelease);
  record.enqueued_ns.store(values.enqueued_ns, kRelease);
  record.started_ns.store(values.started_ns, kRelease);
  record.ended_ns.store(values.ended_ns, kRelease);
  record.device_ns.store(values.device_ns, kRelease);
  record.blocked_ns.store(values.blocked_ns, kRelease);
  record.moved_bytes.store(values.moved_bytes, kRelease);
  record.what.store(PackWhat(values), kRelease);
  record.peer.store(values.peer, kRelease);
}

CollectiveValues LoadValues(const CollectiveRecord& record) {
  CollectiveValues values;
  values.communicator = record.communicator.load(kAcquire);
  values.sequence = record.sequence.load(kAcquire);
  values.bytes = record.bytes.load(kAcquire);
  values.step = record.step.load(kAcquire);
  values.enqueued_ns = record.enqueued_ns.load(kAcquire);
  values.started_ns = record.started_ns.load(kAcquire);
  values.ended_ns = record.ended_ns.load(kAcquire);
  values.device_ns = record.device_ns.load(kAcquire);
  values.blocked_ns = record.blocked_ns.load(kAcquire);
  values.moved_bytes = record.moved_bytes.load(kAcquire);
  const uint64_t what = record.what.load(kAcquire);
  values.kind = static_cast<CollectiveKind>(what);
  values.dtype = static_cast<uint8_t>(what >> 8);
  values.algorithm = static_cast<CollectiveAlgorithm>(what >> 16);
  values.protocol = static_cast<CollectiveProtocol>(what >> 24);
  values.channels = static_cast<uint8_t>(what >> 32);
  values.source = static_cast<CollectiveSource>(what >> 40);
  values.flags = static_cast<uint16_t>(what >> 48);
  values.peer = static_cast<uint32_t>(record.peer.load(kAcquire));
  return values;
}

void CopyValues(const CollectiveRecord& from, CollectiveRecord& to) {
  to.communicator.store(from.communicator.load(kAcquire), kRelease);
  to.sequence.store(from.sequence.load(kAcquire), kRelease);
  to.bytes.store(from.bytes.load(kAcquire), kRelease);
  to.step.store(from.step.load(kAcquire), kRelease);
  to.enqueued_ns.store(from.enqueued_ns.load(kAcquire), kRelease);
  to.started_ns.store(from.started_ns.load(kAcquire), kRelease);
  to.ended_ns.store(from.ended_ns.load(kAcquire), kRelease);
  to.device_ns.store(from.device_ns.load(kAcquire), kRelease);
  to.blocked_ns.store(from.blocked_ns.load(kAcquire), kRelease);
  to.moved_bytes.store(from.moved_bytes.load(kAcquire), kRelease);
  to.what.store(from.what.load(kAcquire), kRelease);
  to.peer.store(from.peer.load(kAcquire), kRelease);
}

uint64_t PackPeerKey(const PeerKey& key) {
  return 1ULL << 63 | uint64_t{key.direction == Direction::kReceive} << 62 |
         uint64_t{key.communicator & 0xFF} << 54 |
         uint64_t{key.generation & kPeerGenerations} << 32 | key.peer;
}

PeerKey UnpackPeerKey(uint64_t word) {
  return {.communicator = static_cast<uint32_t>(word >> 54 & 0xFF),
          .generation = static_cast<uint32_t>(word >> 32 & kPeerGenerations),
          .peer = static_cast<uint32_t>(word),
          .direction = (word >> 62 & 1) != 0 ? Direction::kReceive : Direction::kSend};
}

std::string_view NameOf(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "AllReduce";
    case CollectiveKind::kAllGather:
      return "AllGather";
    case CollectiveKind::kReduceScatter:
      return "ReduceScatter";
    case CollectiveKind::kBroadcast:
      return "Broadcast";
    case CollectiveKind::kReduce:
      return "Reduce";
    case CollectiveKind::kAllToAll:
      return "AllToAll";
    case CollectiveKind::kBarrier:
      return "Barrier";
    case CollectiveKind::kSend:
      return "Send";
    case CollectiveKind::kReceive:
      return "Receive";
    case CollectiveKind::kOther:
      break;
  }
  return "Other";
}

void ForgetWriter(CollectiveTable& table) {
  table.layout.store(0, std::memory_order_release);
  table.sampling.store(0, kRelaxed);
}

void RequestSampling(CollectiveTable& table, uint32_t operations) {
  const uint64_t before = table.sampling.load(kRelaxed);
  table.sampling.store(((before >> 32) + 1) << 32 | operations, kRelaxed);
}

}  // namespace holdfast::agent
