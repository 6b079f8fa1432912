#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "storage/base/ids.h"

// What is told of a running job to find out who is faulty: plain values. Each comes from one rank,
// or from the agent of its node, and only durations of that node's monotonic clock count: times of
// different nodes are never compared. Any of it may be lost, late, doubled, or nonsense.
//
// The numbers of the enums are stable (shared memory and wire); a number outside an enum is refused
// by the detector.

namespace holdfast::detect {

/// Names a communicator: the same number on all of its ranks, another for another communicator.
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

/// What a communicator is for, when the job says so.
enum class Role : uint8_t {
  kUnknown = 0,
  kData = 1,
  kTensor = 2,
  kPipeline = 3,
  kExpert = 4,
};
inline constexpr uint8_t kRoleMax = 4;

/// A group of ranks that communicate. Told when it is made, and again whenever an agent attaches.
struct Communicator {
  CommId id;
  Role role = Role::kUnknown;
  std::vector<Rank> members;  // ranks of the job, in the order of the communicator
};

/// One operation that one rank completed. A writer may sample, when all ranks choose the same
/// operations: by a hash of (comm, func, seq).
struct Collective {
  Rank rank;
  CommId comm;
  Func func = Func::kOther;
  uint8_t dtype = 0;  // the library's own number; only compared
  uint8_t algo = 0;   // the same
  uint8_t proto = 0;  // the same
  uint64_t seq = 0;   // the rank's own ordinal within (comm, func), from 0
  uint64_t bytes = 0;
  uint64_t start_ns = 0;  // the rank's clock: the operation starts to execute (not: is enqueued)
  uint64_t stop_ns = 0;
  uint64_t enqueue_ns = 0;  // the same clock; 0: not known
  /// Running totals of the rank over all communicators, sampled or not, as of start_ns: the time it
  /// spent in operations (overlapping ones count once), and the bytes it sent and received in them.
  /// They say what share of a delay is the rank's own, and how much work it had. 0: not known.
  uint64_t blocked_ns = 0;
  uint64_t moved_bytes = 0;
};

/// How far a transfer is, as the NCCL profiler's proxy steps have it.
enum class EdgeState : uint8_t {
  kUnknown = 0,
  kSendGpuWait = 1,    // the sender's GPU has not produced the data: local, or upstream
  kSendPeerWait = 2,   // the receiver has given no credit
  kSendWait = 3,       // on the wire
  kRecvWait = 4,       // nothing arrived yet
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
  uint64_t steps = 0;  // transfers completed on this edge in the operation; 0 also when not known
};

enum class FlightState : uint8_t { kEnqueued = 0, kStarted = 1 };

/// One operation that a rank has not completed. Only those older than about a second need to be
/// told.
struct InFlight {
  Rank rank;
  CommId comm;
  Func func = Func::kOther;
  uint8_t dtype = 0;
  FlightState state = FlightState::kEnqueued;
  uint64_t seq = 0;
  uint64_t bytes = 0;
  uint64_t age_ns = 0;  // in this state, by the node's clock when the digest was taken
  std::optional<PeerEdge> edge;
};

/// How many operations of one kind a rank has completed. Told in every digest for what moved
/// lately: without it, a rank that has just left an operation looks like one that never came.
struct Completed {
  Rank rank;
  CommId comm;
  Func func = Func::kOther;
  uint64_t count = 0;  // operations 0 … count − 1 are complete
};

/// What one rank moved to or from one peer over a window of operations.
struct PeerSums {
  Rank rank;
  Rank peer;
  CommId comm;
  Direction direction = Direction::kSend;
  uint64_t bytes = 0;
  uint64_t wait_ns = 0;  // in kSendWait, or in kRecvWait
  uint64_t operations = 0;
};

/// Phases in which a rank says that it makes no steps, or not at its usual pace.
enum class Phase : uint8_t {
  kInit = 1,
  kCompile = 2,
  kCheckpoint = 4,
  kEvaluation = 8,
  kCollective = 16,  // it is in a collective by its own account
};

/// Duration of one step of one rank.
struct StepTime {
  uint64_t step = 0;
  uint64_t duration_ns = 0;
};

/// What the agent sees of one rank.
struct RankState {
  Rank rank;
  bool alive = true;         // by its pidfd
  bool finished = false;     // it exited with code 0: not a fault
  char process_state = 'R';  // of /proc/PID/stat: R S D T Z X, 0: not known
  uint8_t phases = 0;        // bits of Phase: any that it was in since the digest before
  uint64_t step = 0;
  uint64_t heartbeat_age_ns = 0;          // since the process last showed life by itself
  uint64_t since_step_ns = 0;             // since `step` advanced
  std::vector<StepTime> steps_done = {};  // finished since the digest before, oldest first
};

/// Whether the agent of one node lately had an answer from another.
struct Reach {
  std::string node;
  bool reached = false;
};

/// What one agent says of its ranks in one message.
struct Digest {
  std::string node;
  Incarnation incarnation;
  uint32_t world = 0;        // ranks of the job
  uint64_t agent_start = 0;  // names the agent's process: numbering starts again with it
  uint64_t number = 0;       // counts this agent's digests of the job
  uint64_t taken_ns = 0;     // the node's monotonic clock
  std::vector<Communicator> communicators;
  std::vector<RankState> ranks;
  std::vector<Collective> collectives;
  std::vector<InFlight> in_flight;
  std::vector<Completed> completed;
  std::vector<PeerSums> peer_sums;
  std::vector<Reach> reach = {};  // of a few others, while an operation does not end
};

}  // namespace holdfast::detect
