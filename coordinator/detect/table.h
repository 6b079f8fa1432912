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

// The state of the job's ranks, nodes and communicators, taken from validated digests. Its size is
// bounded by the size of the world.

namespace holdfast::detect {

/// Index of a node or a communicator in the table.
using Index = uint32_t;
inline constexpr Index kNone = ~Index{0};
/// Bounds on the operations in flight that are kept for one rank.
inline constexpr size_t kStartedPerRankMax = 64;
inline constexpr size_t kEnqueuedPerRankMax = 16;
/// Records with larger numbers are refused.
inline constexpr uint64_t kDurationNsMax = uint64_t{30} * 24 * 3600 * 1'000'000'000;
inline constexpr uint64_t kBytesMax = uint64_t{1} << 50;
inline constexpr uint64_t kSequenceMax = uint64_t{1} << 48;

/// Whether all members leave the operation together, and only after the last one has joined.
constexpr bool IsSynchronous(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather ||
         kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll ||
         kind == CollectiveKind::kBarrier;
}

/// One operation in flight on a rank, as its agent last reported it (RankFlight).
struct Flight {
  Index comm = kNone;
  CollectiveRecord record;
  bool started = false;
  uint64_t age_ns = 0;
  std::optional<PeerEdge> edge;
};

/// A rank's membership in a communicator, as its own agent reported it.
struct Membership {
  CommunicatorId id;
  Index comm = kNone;
  uint32_t position = 0;  // index of the rank in CommInfo::members
};

struct RankInfo {
  Index node = kNone;  // kNone: no report received yet
  RankState latest;    // the newest report, without steps
  /// Time of the last report that showed progress: an operation started or completed, a step, or
  /// the start or end of a phase.
  Clock::TimePoint moved_at = Clock::TimePoint::min();
  /// Time of the last report in which the rank was in a phase without steps.
  Clock::TimePoint excused_at = Clock::TimePoint::min();
  uint8_t phases = 0;                                      // the marked phases of the rank now
  Clock::TimePoint phase_since = Clock::TimePoint::min();  // when `phases` last changed
  /// Total length of the marked phases that ended since the rank's last common operation. When
  /// other ranks wait for this rank, this much of their waiting time does not count.
  uint64_t grace_ns = 0;
  /// Time of the last report that showed its process running; min(): none did.
  Clock::TimePoint ran_at = Clock::TimePoint::min();
  /// Since when its process has been reported as stopped; min(): it is not stopped.
  Clock::TimePoint stopped_since = Clock::TimePoint::min();
  bool began = false;         // the rank has completed an operation
  bool counted = false;       // among the ranks that have begun
  Recent<float, 8> steps_ns;  // the last steps
  std::vector<Flight> flights;
  std::vector<Flight> flights_before;   // of the previous report
  std::vector<Flight> flights_earlier;  // of the report before that one
  std::vector<Membership> memberships;

  bool has_begun() const { return began || latest.step > 0; }
};

struct NodeInfo {
  std::string name;
  uint64_t agent_start = 0;
  uint64_t newest = 0;       // number of the newest digest
  uint64_t seen_before = 0;  // bit i: digest number newest − 1 − i was received
  /// Least (arrival − taken) of the current and of the previous set of digests. It is the offset of
  /// the clocks plus the shortest delay, and follows clock drift.
  int64_t least_offset_ns = 0;
  int64_t least_offset_before_ns = INT64_MAX;
  uint32_t offsets = 0;           // digests that least_offset_ns covers
  Clock::TimePoint as_of;         // when the newest digest was taken, by the detector's clock
  Clock::TimePoint as_of_before;  // the same of the digest before it
  uint64_t introduced = 0;        // total size of the communicators that this node reported first
  std::vector<std::pair<Index, bool>> reach;  // newest report: (probed node, it answered)
};

struct CommInfo {
  CommunicatorId id;
  CommunicatorRole role = CommunicatorRole::kUnknown;
  std::vector<uint32_t> members;  // ranks, by position
  std::vector<uint32_t> by_rank;  // positions, sorted by rank
  uint32_t confirmed = 0;         // members whose own agents reported the communicator
  /// Completed operations by (kind, position). A kind's row stays empty until its first record.
  std::array<std::vector<uint64_t>, kCollectiveKinds> completed;
  std::array<uint64_t, kCollectiveKinds> completed_most{};  // the largest count of any member
  Clock::TimePoint advanced_at = Clock::TimePoint::min();
  Recent<float, 16> pauses_ns;  // gaps of at least a second between operations
  bool pairwise = false;        // it has sends or receives

  /// Whether the agents of at least half of the members have reported the communicator, so that a
  /// single faulty agent cannot make up a large one.
  bool is_confirmed() const { return confirmed * 2 >= members.size(); }
};

/// A histogram of durations from 1 µs to 17 minutes, with four buckets in each octave.
class DurationHistogram {
 public:
  void Add(uint64_t ns);
  /// Returns the upper bound of the quantile's bucket in nanoseconds; 0 if empty.
  uint64_t Quantile(double q) const;
  uint64_t count() const { return count_; }

 private:
  std::array<uint32_t, 128> buckets_{};
  uint64_t count_ = 0;
};

/// Returns a key for operations that take about the same time: same role, kind and power of two
/// of the size.
uint32_t DurationKeyOf(CommunicatorRole role, CollectiveKind kind, uint64_t bytes);

class Table {
 public:
  Table(Incarnation incarnation, uint32_t world, const DetectorOptions& options);

  /// A digest whose header passed validation.
  struct Admitted {
    Index node = kNone;
    bool newest = false;  // false: a late digest, of which only completed operations count
  };
  /// Admits each digest at most once. Returns nullopt if the digest is refused or a repeat.
  std::optional<Admitted> Admit(const Digest& digest, Clock::TimePoint now);
  /// Records the parts of an admitted digest that describe the current state.
  void TakeState(const Digest& digest, const Admitted& admitted);

  /// Returns the membership of a rank of that node in a communicator that enough agents confirmed;
  /// nullptr if there is none.
  const Membership* Find(Rank rank, CommunicatorId comm, Index node) const;
  void NoteCompleted(const Membership& membership, CollectiveKind kind, uint64_t count,
                     Clock::TimePoint as_of);
  void NoteDuration(uint32_t key, uint64_t ns) { durations_[key].Add(ns); }
  /// Returns the 99th percentile of the durations with this DurationKeyOf, in ns; 0 if none.
  uint64_t SlowestUsual(uint32_t key) const;
  void NotePause(uint64_t ns) { longest_pause_ns_ = std::max(longest_pause_ns_, ns); }
  uint64_t longest_pause_ns() const { return longest_pause_ns_; }
  const PhaseLengths& phase_lengths() const { return phase_lengths_; }
  /// Whether the rank is in a phase without steps that is not far longer than usual.
  bool IsExcused(const RankInfo& info) const {
    return info.phases != 0 &&
           nodes_[info.node].as_of - info.phase_since < phase_lengths_.Limit(info.phases);
  }
  /// Whether the newest report lacks an operation that the report before has as started.
  static bool HasLeft(const RankInfo& info);
  /// Whether no report of the last `length` has shown the process running.
  bool IsIdle(const RankInfo& info, Clock::Duration length) const {
    return nodes_[info.node].as_of - length >= info.ran_at;
  }
  /// Returns when the first digest arrived.
  Clock::TimePoint first_report() const { return first_report_; }
  /// Returns how long half of the ranks needed for their first operation or step; nullopt: they
  /// have not begun.
  std::optional<Clock::Duration> time_to_begin() const { return time_to_begin_; }
  /// Returns how long a rank that has not begun may stay in a marked phase of unknown length while
  /// most others have begun.
  Clock::Duration FirstPhaseLimit() const;
  /// Whether the rank has not begun, and is in a marked phase for longer than that.
  bool IsFirstPhaseOver(const RankInfo& info) const;
  /// Whether any operation of the job has completed.
  bool any_completed() const { return any_completed_; }
  /// Whether any rank has reported an operation. Communicators alone do not count.
  bool any_operation() const { return any_completed_ || any_flight_; }

  uint32_t world() const { return static_cast<uint32_t>(ranks_.size()); }
  const RankInfo& rank(uint32_t rank) const { return ranks_[rank]; }
  const NodeInfo& node(Index node) const { return nodes_[node]; }
  /// Returns the ranks of the job on this node, ascending.
  std::vector<Rank> RanksOn(const std::string& name) const;
  const std::vector<NodeInfo>& nodes() const { return nodes_; }
  const CommInfo& comm(Index comm) const { return comms_[comm]; }
  const std::vector<CommInfo>& comms() const { return comms_; }
  /// Returns the last time at which any rank was in a phase without steps.
  Clock::TimePoint excused_at() const { return excused_at_; }
  const std::string& NodeNameOf(uint32_t rank) const;
  /// Returns the number of communicators with sends or receives.
  uint32_t pairwise_comms() const { return pairwise_comms_; }
  /// Whether the members are stages of a pipeline, whose work differs: they exchange sends and
  /// receives, in this communicator or in another one.
  bool SpansStages(Index comm) const;
  DetectorCounters& counters() { return counters_; }
  const DetectorCounters& counters() const { return counters_; }
  void RefuseRecord() { ++counters_.refused_records; }

 private:
  Index NodeOf(const Digest& digest);
  void NotePairwise(CommInfo& comm, CollectiveKind kind);
  static void NoteOffset(NodeInfo& node, int64_t offset_ns);
  void TakeCommunicator(const Communicator& communicator, const Digest& digest, Index node);
  Index Introduce(const Communicator& communicator, Index node);
  void TakeRank(const RankState& state, Index node);
  void TakePhases(RankInfo& info, uint8_t phases, Clock::TimePoint as_of);
  void TakeFlight(const RankFlight& flight, Index node);
  void NoteMoved(uint32_t rank, Index node);
  void NoteAdvance(CommInfo& comm, CollectiveKind kind, uint64_t count,
                   Clock::TimePoint as_of) const;
  void TakeReach(const Digest& digest, Index node);

  const Incarnation incarnation_;
  const DetectorOptions options_;
  std::vector<RankInfo> ranks_;
  std::vector<NodeInfo> nodes_;
  std::unordered_map<std::string, Index> node_index_;
  std::vector<CommInfo> comms_;
  std::unordered_map<CommunicatorId, Index> comm_index_;
  std::map<uint32_t, DurationHistogram> durations_;  // by DurationKeyOf
  Clock::TimePoint excused_at_ = Clock::TimePoint::min();
  PhaseLengths phase_lengths_;
  Clock::TimePoint first_report_ = Clock::TimePoint::min();
  void NoteBegun(const Digest& digest, Index node);
  uint32_t begun_ = 0;  // ranks that have completed an operation or a step
  std::optional<Clock::Duration> time_to_begin_;
  bool any_completed_ = false;
  bool any_flight_ = false;
  uint32_t pairwise_comms_ = 0;
  uint64_t longest_pause_ns_ = 0;
  DetectorCounters counters_;
};

}  // namespace holdfast::detect
