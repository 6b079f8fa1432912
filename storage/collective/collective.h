#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/ids.h"

// What a rank records about its operations: collectives, sends and receives. The recorder
// (client/core), the shared table (agent/api), the agent (agent/telemetry), the messages to the
// coordinator (coordinator/api) and the detector (coordinator/detect) use these types and these
// names. All are plain values.
//
// The numbers of the enums are stable: they are in shared memory, in messages and in holdfast.h.
// Times are CLOCK_MONOTONIC nanoseconds of the rank's node; 0: not yet, or unknown. Across nodes,
// only durations and ages are comparable.

namespace holdfast {

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
inline constexpr uint8_t kCollectiveAlgorithms = 7;

enum class CollectiveProtocol : uint8_t { kUnknown = 0, kSimple = 1, kLl = 2, kLl128 = 3 };
inline constexpr uint8_t kCollectiveProtocols = 4;

enum class CollectiveSource : uint8_t { kProgram = 0, kNccl = 1 };
inline constexpr uint8_t kCollectiveSources = 2;

/// What a communicator is used for. kUnknown when the job does not declare it.
enum class CommunicatorRole : uint32_t {
  kUnknown = 0,
  kData = 1,
  kTensor = 2,
  kPipeline = 3,
  kExpert = 4,
};
inline constexpr uint32_t kCommunicatorRoles = 5;

enum class Direction : uint8_t { kSend = 0, kReceive = 1 };

/// What the current transfer with a peer waits for, as NCCL's profiler reports it.
enum class EdgeState : uint8_t {
  kIdle = 0,              // no transfer; for an operation in flight: unknown
  kSendGpuWait = 1,       // the sender's GPU has not produced the data
  kSendPeerWait = 2,      // the receiver has no free buffer
  kSendWait = 3,          // on the wire
  kReceiveWait = 4,       // nothing has arrived yet
  kReceiveFlushWait = 5,  // arrived, on the way into the GPU's memory
  kReceiveGpuWait = 6,    // the receiver's GPU has not consumed it
};
inline constexpr uint8_t kEdgeStates = 7;

/// Returns the kind's name, such as "AllReduce"; "Operation" for kOther and for a number without a
/// name.
std::string_view NameOf(CollectiveKind kind);
/// Returns the kind with this name; kOther if there is none.
CollectiveKind KindOfName(std::string_view name);

/// Returns the enumerator with this number; kOther or kUnknown if there is none.
CollectiveKind KindOfNumber(uint32_t number);
CollectiveAlgorithm AlgorithmOfNumber(uint32_t number);
CollectiveProtocol ProtocolOfNumber(uint32_t number);
CommunicatorRole RoleOfNumber(uint32_t number);
/// Returns kProgram for an unknown number.
CollectiveSource SourceOfNumber(uint32_t number);
/// Returns kSend for an unknown number.
Direction DirectionOfNumber(uint32_t number);
/// Returns kIdle for an unknown number.
EdgeState EdgeStateOfNumber(uint32_t number);

/// Whether the operation is a send or a receive. These pair two ranks of a communicator, and the
/// two sides number them independently.
constexpr bool IsPairwise(CollectiveKind kind) {
  return kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive;
}

/// Identifies a communicator: the same number on all of its ranks, and a different number for each
/// communicator.
using CommunicatorId = StrongNumber<struct CommunicatorTag, uint64_t>;

/// A group of ranks that communicate, as one of them describes it.
struct Communicator {
  CommunicatorId id = {};
  CommunicatorRole role = CommunicatorRole::kUnknown;
  uint32_t size = 0;
  uint32_t index = 0;  // of the rank that describes the communicator
  /// Ranks of the job, by index; empty: unknown to the rank that describes the communicator.
  std::vector<Rank> members = {};

  bool operator==(const Communicator&) const = default;
};

inline constexpr uint32_t kNoPeer = ~0U;
inline constexpr uint8_t kNoDtype = 255;
/// Flags of a record.
inline constexpr uint16_t kEndInferred = 1;  // its end is inferred from later operations
inline constexpr uint16_t kSampled = 2;      // its transfers are in the sums per peer

/// One operation of one rank.
struct CollectiveRecord {
  CommunicatorId communicator = {};
  uint64_t sequence = 0;  // number among operations of this kind in the communicator, from 0
  uint64_t bytes = 0;
  uint64_t step = 0;         // the trainer's step when the operation began
  uint64_t enqueued_ns = 0;  // when the program requested the operation
  uint64_t started_ns = 0;   // when it began to run; on a GPU this can be much later
  uint64_t ended_ns = 0;
  uint64_t device_ns = 0;  // run time, measured by the device's timer
  /// The rank's running totals at the start of the operation, over all communicators: time in
  /// operations (overlapping ones count once) and their bytes. They show what share of a delay is
  /// the rank's own, and how much work the rank had. When threads begin or end operations
  /// concurrently, the totals may lack a little. 0: unknown.
  uint64_t blocked_ns = 0;
  uint64_t moved_bytes = 0;
  CollectiveKind kind = CollectiveKind::kOther;
  uint8_t dtype = 0;  // as in holdfast.h, or kNoDtype
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kUnknown;
  CollectiveProtocol protocol = CollectiveProtocol::kUnknown;
  uint8_t channels = 0;
  CollectiveSource source = CollectiveSource::kProgram;
  uint16_t flags = 0;
  uint32_t peer = kNoPeer;  // index in the communicator: the root or the other end

  bool operator==(const CollectiveRecord&) const = default;
};

/// The transfer that an operation in flight waits for.
struct EdgeWait {
  uint32_t peer = 0;  // index in the communicator
  Direction direction = Direction::kSend;
  EdgeState state = EdgeState::kIdle;
  uint64_t age_ns = 0;  // in this state
  /// Transfers of the operation that are complete on this connection; nullopt: unknown.
  std::optional<uint64_t> completed = {};
};

/// An operation that has not ended.
struct InFlight {
  CollectiveRecord record = {};
  bool started = false;  // otherwise it is only enqueued
  uint64_t age_ns = 0;   // since its start, or since it was enqueued
  std::optional<EdgeWait> edge = {};
};

/// Operations 0 … count − 1 of this kind are complete.
struct CompletedCount {
  CommunicatorId communicator = {};
  CollectiveKind kind = CollectiveKind::kOther;
  uint64_t count = 0;
};

/// Completed transfers to or from one peer, and where their time was spent.
struct PeerTransfers {
  CommunicatorId communicator = {};
  uint32_t peer = 0;  // index in the communicator
  Direction direction = Direction::kSend;
  uint64_t transfers = 0;
  uint64_t bytes = 0;
  uint64_t gpu_wait_ns = 0;   // waiting for this rank's GPU to produce or consume the data
  uint64_t peer_wait_ns = 0;  // waiting for a free buffer of the peer, or for its first data
  uint64_t transfer_ns = 0;   // on the wire
  uint64_t flush_ns = 0;      // from the receipt until the data is in the GPU's memory
};

/// The duration of one completed step of a rank.
struct StepTime {
  uint64_t step = 0;
  uint64_t duration_ns = 0;
};

}  // namespace holdfast
