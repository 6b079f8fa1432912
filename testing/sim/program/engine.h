#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

#include "testing/sim/program/log.h"
#include "testing/sim/program/pace.h"

// Executes the programs of all ranks as discrete events. The CPU of a rank enqueues operations. An
// operation starts once it is enqueued, its dependency has ended and its stream is free. A
// collective ends for all ranks once the last participant has started it and its transfer is
// complete.

namespace holdfast::sim::program {

inline constexpr double kNever = 1e18;
inline constexpr uint64_t kNone = ~uint64_t{0};

/// An operation of one rank. A time is kNever until it is known. All times up to the engine's
/// horizon are known.
struct Op {
  enum class Kind : uint8_t { kCompute, kTransfer, kMarker };
  Kind kind = Kind::kCompute;
  Work work = Work::kFixed;
  CollectiveKind collective = CollectiveKind::kOther;
  uint8_t stream = 0;
  uint32_t channel = 0;
  uint32_t iteration = 0;
  uint64_t bytes = 0;
  double seconds = 0;
  uint64_t after = kNone;  // the operation it depends on, in addition to the stream's order
  uint64_t sequence = 0;   // among the operations of its kind in the communicator
  uint64_t ordinal = 0;    // among the rank's operations in the channel
  uint32_t member = 0;     // the rank's place in the channel
  double enqueue_s = 0;
  double start_s = kNever;
  double end_s = kNever;
  bool joined = false;
  // For the recorder (recorder.h).
  bool seen = false;
  bool over = false;
  uint16_t slot = 0;
  uint64_t blocked_ns = 0;
  uint64_t moved_bytes = 0;
};

struct StepMark {
  double at_s = 0;
  double duration_s = 0;
  uint64_t step = 0;  // the step that ended
};

struct PhaseMark {
  double from_s = 0;
  double to_s = kNever;
  uint8_t bit = 0;
  std::string_view states = "R";  // of the process, one per second, repeated
};

/// The wait on one connection in one operation, for the sums that the detector requests.
struct PeerWait {
  double at_s = 0;
  detect::RankTransfers transfers;
};

class Engine {
 public:
  /// The job, the setting and the faults must outlive the engine. At most one of several faults may
  /// be a hang.
  Engine(const Job& job, const Setting& setting, const std::vector<Fault>& faults, uint64_t seed);

  /// Executes until `horizon_s`. All times up to then are known afterwards.
  void RunUntil(double horizon_s);

  struct RankState {
    uint32_t pc = 0;
    uint32_t iteration = 0;
    uint32_t paused_for = 0;  // iterations whose pauses have ended
    double cpu_s = 0;
    bool stuck = false;      // the CPU makes no more progress
    char stuck_state = 'S';  // the process state while stuck
    double step_began_s = 0;
    uint64_t sync_on = kNone;  // the CPU waits for the end of this operation
    uint64_t step_before = kNone;
    uint64_t base = 0;  // number of ops.front()
    Log<Op> ops;
    struct Stream {
      uint64_t last = kNone;
      double free_s = 0;      // end of the last operation with a known end
      Log<uint64_t> waiting;  // operations without a known end
    };
    std::vector<Stream> streams;
    std::vector<uint64_t> labels;
    std::vector<uint64_t> kernels;  // the last ones: as many as the CPU may be ahead
    uint64_t kernel_count = 0;
    std::vector<uint64_t> ordinals;                                 // by own channel
    std::vector<std::array<uint64_t, kCollectiveKinds>> sequences;  // by own communicator
    std::deque<StepMark> steps;
    std::deque<PhaseMark> phases;
    PhaseMark paused;  // the last pause, marked or not
  };
  RankState& rank(uint32_t rank) { return ranks_[rank]; }
  const RankState& rank(uint32_t rank) const { return ranks_[rank]; }
  const Job& job() const { return job_; }
  const Setting& setting() const { return setting_; }
  /// The hang if there is one, else the first fault.
  const Fault& fault() const { return fault_; }

  /// When the fault took effect; kNever: not yet.
  double effect_s() const { return effect_s_; }
  /// When the rank's process stops or ends; kNever if it does not. ResumesAt: when it continues;
  /// kNever if it does not.
  double StopsAt(uint32_t rank) const;
  double ResumesAt(uint32_t rank) const;
  bool Killed(uint32_t rank, double at_s) const;
  bool NodeLost(uint32_t node, double at_s) const;

  /// Measures the transfers of these communicators from now on.
  void WantTransfers(const std::vector<CommunicatorId>& comms) { wanted_ = comms; }
  std::vector<PeerWait>& peer_waits() { return peer_waits_; }

  /// Returns the connection that a member of an operation waits for, as NCCL's proxy reports it;
  /// nullopt inside a node.
  std::optional<detect::PeerEdge> EdgeOf(uint32_t rank, const Op& op) const;

 private:
  /// A rank's place in a ring that is blocked.
  struct RingPlace {
    uint32_t rank = 0;
    uint32_t next = 0;
    uint32_t previous = 0;
    uint32_t behind = 0;  // positions after the one at which nothing moves
    uint32_t size = 0;
    uint64_t reached = 0;  // transfers that are complete at that position
    bool missing = false;  // the rank there has not started the operation
  };
  std::optional<detect::PeerEdge> RingEdge(const RingPlace& place) const;

  /// One operation while its participants arrive.
  struct Rendezvous {
    uint32_t arrived = 0;
    bool broken = false;  // the participants call different operations
    bool over = false;
    uint64_t bytes = 0;
    double last_s = 0;
    double seconds = 0;
    double tokens = 0;
    CollectiveKind collective = CollectiveKind::kOther;
    std::vector<uint64_t> ops;  // by member; kNone: not arrived
  };
  struct Place {
    std::deque<Rendezvous> rendezvous_queue;
    uint64_t first = 0;  // ordinal of the front
  };
  /// The rank's own numbers of the objects that an instruction refers to.
  struct Local {
    uint32_t channel = 0;
    uint32_t comm = 0;
    uint32_t member = 0;  // the rank's place in the channel
  };

  void Pump(uint32_t rank);
  bool AdvanceCpu(uint32_t rank);
  bool Execute(uint32_t rank, const Instruction& one);
  void Load(uint32_t rank, const Instruction& one);
  void EndStep(uint32_t rank);
  bool RunPauses(uint32_t rank);
  void HangCpu(uint32_t rank, char state);
  Op& Enqueue(uint32_t rank, Op op);
  void EnqueueTransfer(uint32_t rank, const Instruction& one);
  bool Resolve(uint32_t rank, RankState::Stream& stream);
  double ComputeEnd(uint32_t rank, const Op& op);
  void Join(uint32_t rank, const Op& op, uint64_t number);
  void Complete(uint32_t channel, Rendezvous& rendezvous);
  double EndOf(uint32_t channel, const Rendezvous& rendezvous);
  void Measure(uint32_t channel, const Rendezvous& rendezvous, double end_s);
  bool HasLink(uint32_t channel) const;
  void RecordEffect(double at_s) { effect_s_ = std::min(effect_s_, at_s); }
  void Queue(uint32_t rank);
  static Op* Find(RankState& state, uint64_t number) {
    return number == kNone || number < state.base ? nullptr : &state.ops[number - state.base];
  }
  /// Returns when the operation ends; 0 if there is none or it is already forgotten.
  static double EndOf(RankState& state, uint64_t number) {
    const Op* op = Find(state, number);
    return op == nullptr ? 0 : op->end_s;
  }

  const Job& job_;
  const Setting& setting_;
  const Fault fault_;
  Noise noise_;
  Pace pace_;
  double horizon_s_ = 0;
  double effect_s_ = kNever;
  bool operation_hit_ = false;
  std::vector<RankState> ranks_;
  std::vector<std::vector<Local>> locals_;  // by rank and instruction
  std::vector<Place> places_;               // by channel
  std::vector<uint32_t> queue_;
  std::vector<bool> queued_;
  std::vector<CommunicatorId> wanted_;
  std::vector<PeerWait> peer_waits_;
};

}  // namespace holdfast::sim::program
