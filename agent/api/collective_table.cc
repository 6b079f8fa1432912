#include "agent/api/collective_table.h"

namespace holdfast::agent {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
// The memory orders for the fields that a tag guards. Their stores stay after the store of the tag
// that forbids reading. Their loads stay before the second read of the tag. ThreadSanitizer does
// not support fences, so there are none.
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

static_assert(sizeof(CollectiveEntry) == 128 && sizeof(PeerCell) == 128);
static_assert(sizeof(CommunicatorEntry) == 1152 && offsetof(CommunicatorEntry, members) == 112);
static_assert(sizeof(ProgressEntry) == 64 && sizeof(DropCounts) == 64);
static_assert(offsetof(CollectiveTable, sampling) == 64);
static_assert(offsetof(CollectiveTable, ring_head) == 128);
static_assert(offsetof(CollectiveTable, progress) == 192);
static_assert(offsetof(CollectiveTable, drops) == 256);
static_assert(offsetof(CollectiveTable, steps) == 320 && sizeof(StepRecord) == 32);
static_assert(offsetof(CollectiveTable, peers) == 2368);
static_assert(offsetof(CollectiveTable, communicators) == 133'440);
static_assert(offsetof(CollectiveTable, in_flight) == 280'896);
static_assert(offsetof(CollectiveTable, ring) == 411'968);
static_assert(sizeof(CollectiveTable) == 936'256);

constexpr int kFlagsShift = 48;
constexpr int kStateShift = 56;

uint64_t PackWhat(const CollectiveRecord& record) {
  return uint64_t{static_cast<uint8_t>(record.kind)} | uint64_t{record.dtype} << 8 |
         uint64_t{static_cast<uint8_t>(record.algorithm)} << 16 |
         uint64_t{static_cast<uint8_t>(record.protocol)} << 24 | uint64_t{record.channels} << 32 |
         uint64_t{static_cast<uint8_t>(record.source)} << 40 |
         uint64_t{record.flags} << kFlagsShift;
}
}  // namespace

void StoreRecord(CollectiveEntry& entry, const CollectiveRecord& record) {
  entry.communicator.store(record.communicator.value, kRelease);
  entry.sequence.store(record.sequence, kRelease);
  entry.bytes.store(record.bytes, kRelease);
  entry.step.store(record.step, kRelease);
  entry.enqueued_ns.store(record.enqueued_ns, kRelease);
  entry.started_ns.store(record.started_ns, kRelease);
  entry.ended_ns.store(record.ended_ns, kRelease);
  entry.device_ns.store(record.device_ns, kRelease);
  entry.blocked_ns.store(record.blocked_ns, kRelease);
  entry.moved_bytes.store(record.moved_bytes, kRelease);
  entry.what.store(PackWhat(record), kRelease);
  entry.peer.store(record.peer, kRelease);
}

CollectiveRecord LoadRecord(const CollectiveEntry& entry) {
  CollectiveRecord record;
  record.communicator = {entry.communicator.load(kAcquire)};
  record.sequence = entry.sequence.load(kAcquire);
  record.bytes = entry.bytes.load(kAcquire);
  record.step = entry.step.load(kAcquire);
  record.enqueued_ns = entry.enqueued_ns.load(kAcquire);
  record.started_ns = entry.started_ns.load(kAcquire);
  record.ended_ns = entry.ended_ns.load(kAcquire);
  record.device_ns = entry.device_ns.load(kAcquire);
  record.blocked_ns = entry.blocked_ns.load(kAcquire);
  record.moved_bytes = entry.moved_bytes.load(kAcquire);
  const uint64_t what = entry.what.load(kAcquire);
  record.kind = static_cast<CollectiveKind>(what);
  record.dtype = static_cast<uint8_t>(what >> 8);
  record.algorithm = static_cast<CollectiveAlgorithm>(what >> 16);
  record.protocol = static_cast<CollectiveProtocol>(what >> 24);
  record.channels = static_cast<uint8_t>(what >> 32);
  record.source = static_cast<CollectiveSource>(what >> 40);
  record.flags = static_cast<uint16_t>(what >> kFlagsShift);
  record.peer = static_cast<uint32_t>(entry.peer.load(kAcquire));
  return record;
}

void CopyRecord(const CollectiveEntry& from, CollectiveEntry& to) {
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

void AddFlags(CollectiveEntry& entry, uint16_t flags) {
  entry.what.fetch_or(uint64_t{flags} << kFlagsShift, kRelaxed);
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

uint64_t PackCurrentWait(const CurrentWait& wait) {
  return uint64_t{static_cast<uint8_t>(wait.state)} << kStateShift |
         (wait.since_ns & ~(0xFFULL << kStateShift));
}

CurrentWait UnpackCurrentWait(uint64_t word) {
  return {.state = static_cast<EdgeState>(word >> kStateShift),
          .since_ns = word & ~(0xFFULL << kStateShift)};
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
