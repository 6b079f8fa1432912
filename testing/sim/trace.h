#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "coordinator/detect/records.h"
#include "testing/sim/noise.h"
#include "testing/sim/scenario.h"

// Runs a job iteration by iteration on a global clock and delivers the digests of its agents in
// order of arrival. Single-threaded and reproducible: the seed determines the outcome.

namespace holdfast::sim {

/// Agents report operations that have been in flight for longer than this, in seconds.
constexpr double kReportedAgeS = 0.9;
/// A job compiles in its first iterations, which take longer.
constexpr uint32_t kWarmUpIterations = 3;

/// Converts an arrival time to the detector's clock.
Clock::TimePoint DetectorTime(double true_s);

class Trace {
 public:
  Trace(const Scenario& scenario, uint64_t seed);

  /// Simulates one more iteration, or one more second if no rank makes progress.
  void Advance();
  /// All digests that arrive before this time are queued.
  double horizon_s() const { return horizon_s_; }
  struct Delivery {
    double at_s = 0;
    std::unique_ptr<detect::Digest> digest;
  };
  /// Returns the next digest that arrives by `until_s`, in order of arrival.
  std::optional<Delivery> Next(double until_s);
  /// From now on, the agents of these communicators' members send PeerSums.
  void WantTransfers(const std::vector<CommunicatorId>& comms) { wanted_ = comms; }

  const Truth& truth() const { return truth_; }
  const Job& job() const { return job_; }
  uint32_t iteration() const { return iteration_; }
  /// Returns the number of iterations between two times. While no rank makes progress, iterations
  /// count at the pace before.
  double IterationsBetween(double from_s, double to_s) const;
  CommunicatorId IdOf(uint32_t family, uint32_t group) const;

 private:
  struct Node {
    double offset_s = 0;
    double rate = 1;  // of its clock
    double next_s = 0;
    double lost_at_s = 1e18;
    uint64_t number = 0;
    std::vector<detect::RankRecord> done;  // completed and not yet reported
    std::vector<double> done_at_s;         // their stop times on the global clock
    struct LongOperation {
      detect::RankFlight flight;
      double start_s = 0;
      double stop_s = 0;
    };
    std::vector<LongOperation> long_operations;
    std::vector<detect::RankTransfers> sums;
  };
  struct RankState {
    double t = 0;  // when the rank is ready for its next part
    double speed = 1;
    double tokens = 1;  // relative to the average
    double expert_bias = 0;
    double blocked_s = 0;
    double moved = 0;
    double step_end[3] = {};  // of the last iterations, newest last
    uint32_t step_of_end = 0;
    uint32_t ran = 0;                  // the last iteration that it began
    double checkpoint_from_s[2] = {};  // the last two, newest last
    double checkpoint_to_s[2] = {};
    bool stuck = false;
    bool is_root = false;  // the cause of the hang, outside any operation
  };

  // trace.cc: the job
  void PlaceFault();
  void BeginIteration();
  void Run(const Part& part, uint32_t index);
  void Compute(const Part& part);
  void ComputeRank(uint32_t rank, double seconds);
  void InjectHang(const Part& part, uint32_t index);
  void Checkpoint();
  bool Active(uint32_t rank) const;
  // collective.cc
  void Collective(const Part& part);
  void CollectiveOf(const Part& part, uint32_t group, uint64_t seq);
  void Block(const Part& part, uint32_t group, uint64_t seq);
  void DropEdge(const Part& part, uint32_t group, uint64_t seq);
  void Mismatch(const Part& part, uint32_t group, uint64_t seq);
  double LinkFactor(const Part& part, uint32_t group) const;
  void TransfersOf(const Part& part, uint32_t group, double transfer_s);
  bool HotEdge(uint32_t from, uint32_t to) const;
  void Pipeline(const Part& part);
  void HangRank(uint32_t rank, const detect::RankFlight& flight, double at_s);
  CollectiveRecord RecordOf(const Part& part, uint32_t group, uint64_t sequence) const;
  void Transferred(uint32_t rank, CollectiveRecord& record, double from_s, double to_s);
  // telemetry.cc
  void ReportUntil(double until_s);
  void ReportNode(uint32_t index, double at_s);
  void ReportRank(uint32_t rank, double at_s, detect::Digest& digest) const;
  void ReportCompleted(uint32_t rank, double at_s, detect::Digest& digest) const;
  void ReportCommunicators(uint32_t first, uint32_t end, detect::Digest& digest) const;
  void ReportDone(Node& node, double at_s, detect::Digest& digest) const;
  void ReportEnqueued(uint32_t index, double at_s, detect::Digest& digest) const;
  void Send(double at_s, detect::Digest digest);
  static uint64_t LocalNs(const Node& node, double at_s) {
    return static_cast<uint64_t>((at_s + 1000 + node.offset_s) * node.rate * 1e9);
  }

  Scenario scenario_;
  const Conditions conditions_;
  Job job_;
  Noise noise_;
  double nominal_s_ = 1;
  std::vector<RankState> ranks_;
  std::vector<Node> nodes_;
  std::vector<std::vector<uint64_t>> seq_;  // by family and collective
  /// The collectives of an iteration, and when each rank left them in its last two.
  struct Place {
    uint32_t family = 0;
    CollectiveKind collective = CollectiveKind::kOther;
  };
  std::vector<Place> places_;
  /// For each kind of collective, its indices in places_.
  std::vector<std::vector<size_t>> kinds_;
  std::vector<std::vector<Communicator>> communicators_;  // by family and group
  std::vector<double> left_s_;                            // by parity of the iteration, place, rank
  double& LeftAt(uint32_t iteration, size_t place, uint32_t rank) {
    return left_s_[((iteration & 1U) * places_.size() + place) * job_.world + rank];
  }
  size_t place_ = 0;  // of the collective that is being run
  uint32_t iteration_ = 0;
  double horizon_s_ = 0;
  double last_moved_s_ = 0;
  std::vector<double> began_s_;  // by iteration
  bool injected_ = false;
  uint32_t fault_part_ = 0;
  bool active_ = false;  // an intermittent fault is active in this iteration
  uint32_t active_left_ = 0;
  double link_slowdown_ = 1;
  std::vector<CommunicatorId> wanted_;
  Truth truth_;

  struct Later {
    bool operator()(const Delivery& a, const Delivery& b) const { return a.at_s > b.at_s; }
  };
  std::vector<Delivery> queue_;  // a heap
};

}  // namespace holdfast::sim
