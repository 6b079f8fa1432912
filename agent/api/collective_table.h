#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

// What a rank says about its collectives, in the control block of its segment: operations in
// flight, a ring of those that ended, sums over peers, communicators and progress. The trainer
// writes (client/core/collectives.h), the agent reads every 100 ms (agent/telemetry), because a
// rank that hangs says nothing itself. All words are atomics and none is a pointer; the reader
// bounds every number. Byte for byte: docs/formats/collective-table.md.

namespace holdfast::agent {

/// "HFCT" and the layout's number: a writer of another release is told apart by it.
inline constexpr uint64_t kCollectiveTableMagic = 0x5443'4648ULL << 32;
inline constexpr uint32_t kCollectiveTableVersion = 1;

inline constexpr uint32_t kInFlightMax = 1024;
inline constexpr uint32_t kRingEntries = 4096;
inline constexpr uint32_t kCommunicatorsMax = 128;
inline constexpr uint32_t kMembersMax = 256;
inline constexpr uint32_t kPeerCellsMax = 1024;
inline constexpr uint32_t kStepRecords = 64;
inline constexpr uint32_t kNoPeer = ~0U;

/// The numbers are stable: holdfast.h has the same.
enum class CollectiveKind : uint8_t {
  kOther = 0,
  kAllReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kBroadcast = 4,
  kReduce = 5,
  kAllToAll = 6,
  kSend = 7,
  kReceive = 8,
  kBarrier = 9,
};
inline constexpr uint8_t kCollectiveKinds = 10;
enum class CollectiveAlgorithm : uint8_t {
  kUnknown = 0,
  kRing = 1,
  kTree = 2,
  kCollnet = 3,
  kNvls = 4,
  kPat = 5,
  kOther = 6,
};
enum class CollectiveProtocol : uint8_t { kUnknown = 0, kSimple = 1, kLl = 2, kLl128 = 3 };
enum class CollectiveSource : uint8_t { kProgram = 0, kNccl = 1 };
enum class CommunicatorRole : uint32_t {
  kUnknown = 0,
  kData = 1,
  kTensor = 2,
  kPipeline = 3,
  kExpert = 4,
};
inline constexpr uint32_t kCommunicatorRoles = 5;
/// Flags of a record.
inline constexpr uint16_t kEndInferred = 1;  // its end was not seen, but those of later ones were
inline constexpr uint16_t kSampled = 2;      // its transfers are in the sums over peers

/// One operation as plain values. Times are CLOCK_MONOTONIC nanoseconds of the node, 0: not yet.
struct CollectiveValues {
  uint64_t communicator = 0;  // its id, the same on all members
  uint64_t sequence = 0;      // among those of its kind in the communicator, from 0
  uint64_t bytes = 0;
  uint64_t step = 0;         // the trainer's, when it began
  uint64_t enqueued_ns = 0;  // the program asked for it
  uint64_t started_ns = 0;   // it runs: on a GPU this can be much later
  uint64_t ended_ns = 0;
  uint64_t device_ns = 0;  // how long it ran by the device's own timer; 0: not known
  // The rank's running totals when it started, over all communicators: time in operations, those
  // that overlap once, and their bytes. Threads that begin or end at once may lose a little.
  uint64_t blocked_ns = 0;
  uint64_t moved_bytes = 0;
  CollectiveKind kind = CollectiveKind::kOther;
  uint8_t dtype = 0;  // as in holdfast.h, or 255
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kUnknown;
  CollectiveProtocol protocol = CollectiveProtocol::kUnknown;
  uint8_t channels = 0;
  CollectiveSource source = CollectiveSource::kProgram;
  uint16_t flags = 0;
  uint32_t peer = kNoPeer;  // index in the communicator: the root, or the other end

  bool operator==(const CollectiveValues&) const = default;
};

/// An operation in shared memory. `tag` says what the rest is: in flight, the odd generation of
/// the entry; in the ring, 2 · ticket + 2 once the record of that ticket is whole. A reader takes
/// the rest between two looks at an unchanged tag.
struct alignas(64) CollectiveRecord {
  std::atomic<uint64_t> tag;
  std::atomic<uint64_t> communicator;
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> bytes;
  std::atomic<uint64_t> step;
  std::atomic<uint64_t> enqueued_ns;
  std::atomic<uint64_t> started_ns;
  std::atomic<uint64_t> ended_ns;
  std::atomic<uint64_t> device_ns;
  std::atomic<uint64_t> blocked_ns;
  std::atomic<uint64_t> moved_bytes;
  std::atomic<uint64_t> what;  // kind, dtype, algorithm, protocol, channels, source; 16 bits: flags
  std::atomic<uint64_t> peer;
  uint64_t reserved[3];
};

/// Everything but the tag: released and acquired, so that what the reader takes between two looks
/// at the tag is what the writer stored under it.
void StoreValues(CollectiveRecord& record, const CollectiveValues& values);
CollectiveValues LoadValues(const CollectiveRecord& record);
void CopyValues(const CollectiveRecord& from, CollectiveRecord& to);

enum class Direction : uint8_t { kSend = 0, kReceive = 1 };
/// What the transfer under way with a peer waits for. Only the latest is kept.
enum class EdgeState : uint8_t {
  kIdle = 0,
  kSendGpuWait = 1,    // the sender's GPU has not produced the data
  kSendPeerWait = 2,   // the receiver gives no room
  kSendWait = 3,       // on the wire
  kRecvWait = 4,       // nothing has arrived yet
  kRecvFlushWait = 5,  // arrived, on the way into the GPU's memory
  kRecvGpuWait = 6,    // the receiver's GPU has not consumed it
};
inline constexpr uint8_t kEdgeStates = 7;

/// Which sums a cell holds: one direction of one peer of one communicator. 0 is a free cell.
struct PeerKey {
  uint32_t communicator = 0;  // index of its entry
  uint32_t generation = 0;    // of that entry, 22 bits
  uint32_t peer = 0;          // index in the communicator
  Direction direction = Direction::kSend;
};
inline constexpr uint32_t kPeerGenerations = 0x3F'FFFF;  // a mask
uint64_t PackPeerKey(const PeerKey& key);
PeerKey UnpackPeerKey(uint64_t word);

/// Sums since the trainer attached, over transfers that ended.
struct alignas(64) PeerCell {
  std::atomic<uint64_t> key;
  std::atomic<uint64_t> transfers;
  std::atomic<uint64_t> bytes;
  std::atomic<uint64_t> gpu_wait_ns;
  std::atomic<uint64_t> peer_wait_ns;
  std::atomic<uint64_t> transfer_ns;
  std::atomic<uint64_t> flush_ns;
  std::atomic<uint64_t> now;  // EdgeState in the highest byte, since when (ns) below
};

/// `tag` is odd while the entry is in use, and another number at each use; 0: never used.
struct alignas(64) CommunicatorEntry {
  std::atomic<uint64_t> tag;
  std::atomic<uint64_t> id;
  std::atomic<uint32_t> size;
  std::atomic<uint32_t> index;  // this process's place in it
  std::atomic<uint32_t> role;
  std::atomic<uint32_t> member_count;  // of `members`; less than size: the others unknown
  std::atomic<uint64_t> begun[kCollectiveKinds];  // operations by kind: the highest sequence + 1
  std::atomic<uint32_t> members[kMembersMax];     // ranks of the job, by index
};

/// `version` is odd while it is being written.
struct alignas(64) ProgressEntry {
  std::atomic<uint64_t> version;
  std::atomic<uint64_t> step;
  std::atomic<uint64_t> advanced_ns;   // when the step became that; 0: never
  std::atomic<uint64_t> last_step_ns;  // how long the one before took; 0: not known
  std::atomic<uint64_t> steps;         // how many are over
};

/// A step that is over; entry `number % kStepRecords` for the number-th that advanced. `tag` is
/// 2 · number + 2 once it is whole.
struct alignas(32) StepRecord {
  std::atomic<uint64_t> tag;
  std::atomic<uint64_t> step;
  std::atomic<uint64_t> duration_ns;
};

/// Why something is missing: the writer never waits for room.
struct alignas(64) DropCounts {
  std::atomic<uint64_t> in_flight;      // more operations at once than the table holds
  std::atomic<uint64_t> ring;           // a writer was overtaken by a whole ring
  std::atomic<uint64_t> communicators;  // transfers and operations of one that was not described
  std::atomic<uint64_t> peers;          // more pairs than cells
  std::atomic<uint64_t> misuse;         // an end without a begin
};

struct CollectiveTable {
  /// Magic and version, stored last when a trainer attaches. 0: nobody writes here.
  alignas(64) std::atomic<uint64_t> layout;
  std::atomic<uint64_t> writer;  // a number of each process's own: a new one starts from nothing
  /// Agent → trainer: a request's number in the high half, in the low half how many of the next
  /// operations shall be sampled.
  alignas(64) std::atomic<uint64_t> sampling;
  alignas(64) std::atomic<uint64_t> ring_head;  // tickets given out
  ProgressEntry progress;
  DropCounts drops;
  StepRecord steps[kStepRecords];
  PeerCell peers[kPeerCellsMax];
  CommunicatorEntry communicators[kCommunicatorsMax];
  CollectiveRecord in_flight[kInFlightMax];
  CollectiveRecord ring[kRingEntries];
};

/// "AllReduce"; "Other" for what has no name.
std::string_view NameOf(CollectiveKind kind);

/// Agent, before it welcomes a trainer: what an earlier one left does not count. The trainer says
/// again what holds when it attaches.
void ForgetWriter(CollectiveTable& table);
/// Agent: per-peer times of the next `operations`, please. A trainer sees it within an operation.
void RequestSampling(CollectiveTable& table, uint32_t operations);

}  // namespace holdfast::agent
