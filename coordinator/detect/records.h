#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "storage/base/ids.h"

// The records that agents report about a running job: plain values, the input of the detector. Each
// comes from one rank, or from the agent of its node. The detector uses only durations on that
// node's monotonic clock and never compares times of different nodes. Any record may be lost, late,
// duplicated or corrupt.
//
// The numbers of the enums are stable (shared memory and wire). The detector refuses a number
// outside an enum.

namespace holdfast::detect {

/// Identifies a communicator: the same number on all of its ranks, and a different number for each
/// communicator.
using CommId = StrongNumber<struct CommTag, uint64_t>;

enum class Func : uint8_t {
  kOther = 0,
  kAllReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kBroadcast = 4,
  kReduce = 5,
  kAllToAll = 6,
  kSend = 7,
  kRecv = 8,
  kBarrier = 9,
};
inline constexpr uint8_t kFuncMax = 9;

/// What a communicator is used for. kUnknown when the job does not declare it.
enum class Role : uint8_t {
  kUnknown = 0,
  kData = 1,
  kTensor = 2,
  kPipeline = 3,
  kExpert = 4,
};
inline constexpr uint8_t kRoleMax = 4;

/// A group of ranks that communicate. Reported when it is created, and again whenever an agent
/// attaches.
struct Communicator {
  CommId id;
  Role role = Role::kUnknown;
  std::vector<Rank> members;  // ranks of the job, in the order of the communicator
};

/// One operation that one rank completed. A writer may report a sample of the operations if all
/// ranks choose the same ones: by a hash of (comm, func, seq).
struct Collective {
  Rank rank;
  CommId comm;
  Func func = Func::kOther;
  uint8_t dtype = 0;  // the library's own number; only compared for equality
  uint8_t algo = 0;   // likewise
  uint8_t proto = 0;  // likewise
  uint64_t seq = 0;   // the rank's own ordinal within (comm, func), from 0
  uint64_t bytes = 0;
  uint64_t start_ns = 0;  // the rank's clock: the operation starts to execute (not: is enqueued)
  uint64_t stop_ns = 0;
  uint64_t enqueue_ns = 0;  // the same clock; 0: unknown
  /// Running totals of the rank at start_ns, over all communicators and all operations, sampled or
  /// not: the time spent in operations (overlapping operations count once), and the bytes sent and
  /// received in them. They show what share of a delay is the rank's own, and how much work it had.
  /// 0: unknown.
  uint64_t blocked_ns = 0;
  uint64_t moved_bytes = 0;
};

/// The state of a transfer, as the NCCL profiler reports it in its proxy steps.
enum class EdgeState : uint8_t {
  kUnknown = 0,
  kSendGpuWait = 1,    // the sender's GPU has not produced the data: the cause is local or upstream
  kSendPeerWait = 2,   // the receiver has granted no credit
  kSendWait = 3,       // on the wire
  kRecvWait = 4,       // no data has arrived yet
  kRecvFlushWait = 5,  // arrived, not yet visible to the receiver's GPU
  kRecvGpuWait = 6,    // the receiver's GPU has not consumed it
};
inline constexpr uint8_t kEdgeStateMax = 6;

enum class Direction : uint8_t { kSend = 0, kRecv = 1 };

/// The least advanced of a rank's transfers in one operation.
struct PeerEdge {
  Rank peer;
  Direction direction = Direction::kSend;
  EdgeState state = EdgeState::kUnknown;
  uint64_t steps = 0;  // transfers completed on this edge in the operation; 0 also if unknown
};

enum class FlightState : uint8_t { kEnqueued = 0, kStarted = 1 };

/// One operation that a rank has not completed. Agents need to report only operations that are
/// older than about a second.
struct InFlight {
  Rank rank;
  CommId comm;
  Func func = Func::kOther;
  uint8_t dtype = 0;
  FlightState state = FlightState::kEnqueued;
  uint64_t seq = 0;
  uint64_t bytes = 0;
  uint64_t age_ns = 0;  // time in this state, on the node's clock when the digest was taken
  std::optional<PeerEdge> edge;
};

/// How many operations of one kind a rank has completed. Every digest contains the counts that
/// changed recently. Without them, a rank that has just left an operation looks like a rank that
/// never joined it.
struct Completed {
  Rank rank;
  CommId comm;
  Func func = Func::kOther;
  uint64_t count = 0;  // operations 0 … count − 1 are complete
};

/// What one rank sent to or received from one peer over a window of operations.
struct PeerSums {
  Rank rank;
  Rank peer;
  CommId comm;
  Direction direction = Direction::kSend;
  uint64_t bytes = 0;
  uint64_t wait_ns = 0;  // time in kSendWait or in kRecvWait
  uint64_t operations = 0;
};

/// Phases that a rank marks. In them it makes no steps, or makes them more slowly than usual.
enum class Phase : uint8_t {
  kInit = 1,
  kCompile = 2,
  kCheckpoint = 4,
  kEvaluation = 8,
  kCollective = 16,  // the rank itself reports that it is in a collective
};

/// The duration of one step of one rank.
struct StepTime {
  uint64_t step = 0;
  uint64_t duration_ns = 0;
};

/// What the agent observes of one rank.
struct RankState {
  Rank rank;
  bool alive = true;         // by its pidfd
  bool finished = false;     // it exited with code 0: not a fault
  char process_state = 'R';  // from /proc/PID/stat: R S D T t Z X; 0: unknown
  uint8_t phases = 0;        // bits of Phase: every phase since the previous digest
  uint64_t step = 0;
  uint64_t heartbeat_age_ns = 0;          // since the process last wrote anything
  uint64_t since_step_ns = 0;             // since `step` advanced
  std::vector<StepTime> steps_done = {};  // finished since the previous digest, oldest first
};

/// Whether the agent of one node recently received an answer from the node `node`.
struct Reach {
  std::string node;
  bool reached = false;
};

/// One agent's report on its ranks, in one message.
struct Digest {
  std::string node;
  Incarnation incarnation;
  uint32_t world = 0;        // ranks of the job
  uint64_t agent_start = 0;  // identifies the agent's process, which restarts `number`
  uint64_t number = 0;       // sequence number of this agent's digests of the job
  uint64_t taken_ns = 0;     // the node's monotonic clock
  std::vector<Communicator> communicators;
  std::vector<RankState> ranks;
  std::vector<Collective> collectives;
  std::vector<InFlight> in_flight;
  std::vector<Completed> completed;
  std::vector<PeerSums> peer_sums;
  std::vector<Reach> reach = {};  // of a few other nodes, while an operation does not complete
};

}  // namespace holdfast::detect
