#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "coordinator/detect/detector.h"
#include "coordinator/detect/phases.h"
#include "coordinator/detect/robust.h"

// What is known of the job's ranks, nodes and communicators, from digests that were checked. All of
// it is bounded by the size of the world.

namespace holdfast::detect {

/// Index of a node or a communicator in the table.
using Index = uint32_t;
inline constexpr Index kNone = ~Index{0};
/// Bounds on what one rank says of itself.
inline constexpr size_t kStartedPerRankMax = 64;
inline constexpr size_t kEnqueuedPerRankMax = 16;
inline constexpr size_t kFuncs = kFuncMax + 1;
/// Beyond these a number is nonsense.
inline constexpr uint64_t kDurationNsMax = uint64_t{30} * 24 * 3600 * 1'000'000'000;
inline constexpr uint64_t kBytesMax = uint64_t{1} << 50;
inline constexpr uint64_t kSeqMax = uint64_t{1} << 48;

/// Sends and receives pair two ranks of a communicator and have no common ordinal.
constexpr bool IsPairwise(Func func) { return func == Func::kSend || func == Func::kRecv; }
/// All members leave together, and nobody before the last one came.
constexpr bool IsSynchronous(Func func) {
  return func == Func::kAllReduce || func == Func::kAllGather || func == Func::kReduceScatter ||
         func == Func::kAllToAll || func == Func::kBarrier;
}

/// "allreduce", …
std::string_view ToString(Func func);

struct Flight {
  Index comm = kNone;
  Func func = Func::kOther;
  uint8_t dtype = 0;
  FlightState state = FlightState::kEnqueued;
  uint64_t seq = 0;
  uint64_t bytes = 0;
  uint64_t age_ns = 0;
  std::optional<PeerEdge> edge;
};

/// A rank's seat in a communicator, as its own agent said.
struct Seat {
  CommId id;
  Index comm = kNone;
  uint32_t position = 0;
};

struct RankInfo {
  Index node = kNone;  // kNone: nothing heard yet
  RankState word;      // the newest, without steps_done
  /// The last word that said that something had moved: an operation begun or left, a step made, a
  /// phase entered or left.
  Clock::TimePoint moved_at = Clock::TimePoint::min();
  /// The last word that had it in a phase without steps.
  Clock::TimePoint excused_at = Clock::TimePoint::min();
  uint8_t phases = 0;                                      // marked ones that it is in
  Clock::TimePoint phase_since = Clock::TimePoint::min();  // as long as they are the same
  /// Time in marked phases that it left since its last common operation: others wait so much
  /// longer for it.
  uint64_t grace_ns = 0;
  /// Since when its process has been stopped, by its words; min(): it is not.
  Clock::TimePoint stopped_since = Clock::TimePoint::min();
  bool began = false;         // it has completed an operation
  Recent<float, 8> steps_ns;  // the last steps
  std::vector<Flight> flights;
  std::vector<Flight> flights_before;  // of the word before
  std::vector<Seat> seats;

  bool has_begun() const { return began || word.step > 0; }
};

struct NodeInfo {
  std::string name;
  uint64_t agent_start = 0;
  uint64_t newest = 0;       // number of the newest digest
  uint64_t seen_before = 0;  // bit i: number newest − 1 − i was seen
  /// Least (arrival − taken) of lately and of the while before: the clocks' offset, as it drifts.
  int64_t least_offset_ns = 0;
  int64_t least_offset_before_ns = INT64_MAX;
  uint32_t offsets = 0;           // in least_offset_ns
  Clock::TimePoint as_of;         // when the newest digest was taken, by the detector's clock
  Clock::TimePoint as_of_before;  // the one before it
  uint64_t introduced = 0;        // members of communicators that this node was first to name
  std::vector<std::pair<Index, bool>> reach;  // by its newest word: whom it asked, who answered
};

struct CommInfo {
  CommId id;
  Role role = Role::kUnknown;
  std::vector<uint32_t> members;  // ranks, by position
  std::vector<uint32_t> by_rank;  // positions, by their ranks
  uint32_t confirmed = 0;         // members whose own agents named the communicator
  /// Completed operations by (func, position); a func's row is made with its first record.
  std::array<std::vector<uint64_t>, kFuncs> completed;
  std::array<uint64_t, kFuncs> completed_most{};  // of any member
  Clock::TimePoint advanced_at = Clock::TimePoint::min();
  Recent<float, 16> pauses_ns;  // between operations that were far apart
  bool pairwise = false;        // it has sends and receives

  /// At least half of its members' agents know it: one agent gone mad cannot make it up.
  bool believed() const { return confirmed * 2 >= members.size(); }
};

/// A distribution of durations from 1 µs to 17 minutes in steps of a quarter octave.
class DurationHistogram {
 public:
  void Add(uint64_t ns);
  /// Upper bound of the quantile's step; 0 when empty.
  uint64_t Quantile(double q) const;
  uint64_t count() const { return count_; }

 private:
  std::array<uint32_t, 128> buckets_{};
  uint64_t count_ = 0;
};

/// A kind of operation: those of the same kind take the same time.
uint32_t KindOf(Role role, Func func, uint64_t bytes);

class Table {
 public:
  Table(Incarnation incarnation, uint32_t world, const DetectorOptions& options);

  /// A digest that passed the checks of its envelope.
  struct Admitted {
    Index node = kNone;
    bool newest = false;  // its words of state count; records count also from late ones
  };
  /// Admits a digest at most once. Nothing: it is refused or was there before.
  std::optional<Admitted> Admit(const Digest& digest, Clock::TimePoint now);
  /// The parts of an admitted digest that say how things are now.
  void TakeState(const Digest& digest, const Admitted& admitted);

  /// The seat of a rank that the node may speak of, in a communicator that is believed; nullptr
  /// else.
  const Seat* Find(Rank rank, CommId comm, Index node) const;
  void NoteCompleted(const Seat& seat, Func func, uint64_t count, Clock::TimePoint as_of);
  void NoteDuration(uint32_t kind, uint64_t ns) { durations_[kind].Add(ns); }
  /// 99th percentile of operations of the kind; 0 when none completed.
  uint64_t SlowestUsual(uint32_t kind) const;
  void NotePause(uint64_t ns) { longest_pause_ns_ = std::max(longest_pause_ns_, ns); }
  uint64_t longest_pause_ns() const { return longest_pause_ns_; }
  const PhaseLengths& phase_lengths() const { return phase_lengths_; }
  /// The rank is in a phase without steps that is not far longer than usual.
  bool IsExcused(const RankInfo& info) const {
    return info.phases != 0 &&
           nodes_[info.node].as_of - info.phase_since < phase_lengths_.Limit(info.phases);
  }
  /// When the first word of any rank came.
  Clock::TimePoint first_heard() const { return first_heard_; }
  /// Some operation of the job is over.
  bool any_completed() const { return any_completed_; }
  /// Ranks have reported operations. Communicators alone are no operations.
  bool any_operation() const { return any_completed_ || any_flight_; }

  uint32_t world() const { return static_cast<uint32_t>(ranks_.size()); }
  const RankInfo& rank(uint32_t rank) const { return ranks_[rank]; }
  const NodeInfo& node(Index node) const { return nodes_[node]; }
  const std::vector<NodeInfo>& nodes() const { return nodes_; }
  const CommInfo& comm(Index comm) const { return comms_[comm]; }
  const std::vector<CommInfo>& comms() const { return comms_; }
  /// The last time that any rank was in a phase without steps.
  Clock::TimePoint excused_at() const { return excused_at_; }
  const std::string& NodeNameOf(uint32_t rank) const;
  /// How many communicators have sends and receives.
  uint32_t pairwise_comms() const { return pairwise_comms_; }
  /// Members that also send to each other are stages of a pipeline: their work differs.
  bool SpansStages(Index comm) const;
  DetectorCounters& counters() { return counters_; }
  const DetectorCounters& counters() const { return counters_; }
  void RefuseRecord() { ++counters_.refused_records; }

 private:
  Index NodeOf(const Digest& digest);
  void NotePairwise(CommInfo& comm, Func func);
  static void NoteOffset(NodeInfo& node, int64_t offset_ns);
  void TakeCommunicator(const Communicator& communicator, const Digest& digest, Index node);
  Index Introduce(const Communicator& communicator, Index node);
  void TakeRank(const RankState& state, Index node);
  void TakePhases(RankInfo& info, uint8_t phases, Clock::TimePoint as_of);
  void TakeFlight(const InFlight& flight, Index node);
  void NoteMoved(uint32_t rank, Index node);
  void NoteAdvance(CommInfo& comm, Func func, uint64_t count, Clock::TimePoint as_of) const;
  void TakeReach(const Digest& digest, Index node);

  const Incarnation incarnation_;
  const DetectorOptions options_;
  std::vector<RankInfo> ranks_;
  std::vector<NodeInfo> nodes_;
  std::unordered_map<std::string, Index> node_index_;
  std::vector<CommInfo> comms_;
  std::unordered_map<CommId, Index> comm_index_;
  std::map<uint32_t, DurationHistogram> durations_;  // by kind
  Clock::TimePoint excused_at_ = Clock::TimePoint::min();
  PhaseLengths phase_lengths_;
  Clock::TimePoint first_heard_ = Clock::TimePoint::min();
  bool any_completed_ = false;
  bool any_flight_ = false;
  uint32_t pairwise_comms_ = 0;
  uint64_t longest_pause_ns_ = 0;
  DetectorCounters counters_;
};

}  // namespace holdfast::detect
