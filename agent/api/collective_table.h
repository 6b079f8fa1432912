#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "storage/collective/collective.h"

// A rank's record of its collectives, in the control block of its segment: operations in flight, a
// ring of completed operations, sums per peer, communicators and progress. The trainer writes the
// table (client/core/collectives.h). The agent reads it every 100 ms (agent/telemetry), because a
// rank that hangs cannot send a report. All words are atomics and none is a pointer. The reader
// bounds every number. Byte layout: docs/formats/collective-table.md.

namespace holdfast::agent {

/// "HFCT" and the number of the layout, which identifies a writer of another release.
inline constexpr uint64_t kCollectiveTableMagic = 0x5443'4648ULL << 32;
inline constexpr uint32_t kCollectiveTableVersion = 2;

inline constexpr uint32_t kInFlightMax = 1024;
inline constexpr uint32_t kRingEntries = 4096;
inline constexpr uint32_t kCommunicatorsMax = 128;
inline constexpr uint32_t kMembersMax = 256;
inline constexpr uint32_t kPeerCellsMax = 1024;
inline constexpr uint32_t kStepRecords = 64;

/// A CollectiveRecord in shared memory. `tag` identifies the content: for an entry in flight the
/// entry's odd generation, in the ring 2 · ticket + 2 once the record of that ticket is complete. A
/// reader copies the other fields between two reads of the tag and discards them if the tag
/// changed.
struct alignas(64) CollectiveEntry {
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

/// These copy all fields but the tag, with release and acquire order: what the reader loads between
/// two reads of an unchanged tag is what the writer stored under that tag.
void StoreRecord(CollectiveEntry& entry, const CollectiveRecord& record);
CollectiveRecord LoadRecord(const CollectiveEntry& entry);
void CopyRecord(const CollectiveEntry& from, CollectiveEntry& to);
/// Sets flags in an entry, in addition to those that it has.
void AddFlags(CollectiveEntry& entry, uint16_t flags);

/// Identifies the sums of a cell: one direction of one peer of one communicator. A packed key of 0
/// is a free cell.
struct PeerKey {
  uint32_t communicator = 0;  // index of the communicator's entry
  uint32_t generation = 0;    // of that entry, 22 bits
  uint32_t peer = 0;          // index in the communicator
  Direction direction = Direction::kSend;
};
inline constexpr uint32_t kPeerGenerations = 0x3F'FFFF;  // a mask
uint64_t PackPeerKey(const PeerKey& key);
PeerKey UnpackPeerKey(uint64_t word);

/// What the current transfer of a cell waits for. Only the latest state is kept.
struct CurrentWait {
  EdgeState state = EdgeState::kIdle;
  uint64_t since_ns = 0;  // 56 bits
};
uint64_t PackCurrentWait(const CurrentWait& wait);
/// The state may be a number without a name.
CurrentWait UnpackCurrentWait(uint64_t word);

/// PeerTransfers in shared memory: sums since the trainer attached, and what the current transfer
/// waits for. `operation`, `completed` and `now` belong together if `operation` is unchanged after
/// they were read.
struct alignas(64) PeerCell {
  std::atomic<uint64_t> key;
  std::atomic<uint64_t> transfers;
  std::atomic<uint64_t> bytes;
  std::atomic<uint64_t> gpu_wait_ns;
  std::atomic<uint64_t> peer_wait_ns;
  std::atomic<uint64_t> transfer_ns;
  std::atomic<uint64_t> flush_ns;
  std::atomic<uint64_t> now;  // a packed CurrentWait
  /// The OperationName of the operation that the transfer belongs to; 0: unknown.
  std::atomic<uint64_t> operation;
  std::atomic<uint64_t> completed;  // transfers of that operation
  uint64_t reserved[6];
};

/// Names an operation in flight: its entry, and the entry's odd tag. Never 0.
constexpr uint64_t OperationName(uint64_t tag, uint32_t index) { return tag << 16 | index; }

/// A Communicator in shared memory. `tag` is odd while the entry is in use and differs for each
/// use; 0: never used.
struct alignas(64) CommunicatorEntry {
  std::atomic<uint64_t> tag;
  std::atomic<uint64_t> id;
  std::atomic<uint32_t> size;
  std::atomic<uint32_t> index;  // of this process in the communicator
  std::atomic<uint32_t> role;
  std::atomic<uint32_t> member_count;  // of `members`; below size: the others are unknown
  std::atomic<uint64_t> begun[kCollectiveKinds];  // operations by kind: the highest sequence + 1
  std::atomic<uint32_t> members[kMembersMax];     // ranks of the job, by index
};

/// `version` is odd while it is being written.
struct alignas(64) ProgressEntry {
  std::atomic<uint64_t> version;
  std::atomic<uint64_t> step;
  std::atomic<uint64_t> advanced_ns;   // when `step` began; 0: never
  std::atomic<uint64_t> last_step_ns;  // duration of the previous step; 0: unknown
  std::atomic<uint64_t> steps;         // number of completed steps
};

/// A StepTime in shared memory: the number-th completed step is in entry `number % kStepRecords`.
/// `tag` is 2 · number + 2 once the record is complete.
struct alignas(32) StepRecord {
  std::atomic<uint64_t> tag;
  std::atomic<uint64_t> step;
  std::atomic<uint64_t> duration_ns;
};

/// Counts of lost records by cause: the writer never waits for space.
struct alignas(64) DropCounts {
  std::atomic<uint64_t> in_flight;      // more concurrent operations than entries
  std::atomic<uint64_t> ring;           // the ring wrapped around past a slow writer
  std::atomic<uint64_t> communicators;  // operations and transfers of one without an entry
  std::atomic<uint64_t> peers;          // more pairs than cells
  std::atomic<uint64_t> misuse;         // an end without a begin
};

struct CollectiveTable {
  /// Magic and version, stored last when a trainer attaches. 0: no writer is attached.
  alignas(64) std::atomic<uint64_t> layout;
  std::atomic<uint64_t> writer;  // unique per process; after a change earlier reads are void
  /// Agent → trainer: the high half numbers the request, the low half is how many of the next
  /// operations to sample.
  alignas(64) std::atomic<uint64_t> sampling;
  alignas(64) std::atomic<uint64_t> ring_head;  // number of tickets taken
  ProgressEntry progress;
  DropCounts drops;
  StepRecord steps[kStepRecords];
  PeerCell peers[kPeerCellsMax];
  CommunicatorEntry communicators[kCommunicatorsMax];
  CollectiveEntry in_flight[kInFlightMax];
  CollectiveEntry ring[kRingEntries];
};

/// Invalidates what an earlier trainer left in the table. The agent calls it before it welcomes a
/// trainer, which writes its current state when it attaches.
void ForgetWriter(CollectiveTable& table);
/// Requests per-peer times of the next `operations` operations. Called by the agent; a trainer
/// reads the request at its next operation at the latest.
void RequestSampling(CollectiveTable& table, uint32_t operations);

}  // namespace holdfast::agent
