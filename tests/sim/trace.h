#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/detect/records.h"
#include "storage/base/clock.h"
#include "tests/sim/noise.h"
#include "tests/sim/scenario.h"

// Runs a job iteration by iteration on a true clock and hands out what its agents say, when it
// arrives. One thread, one seed, one outcome.

namespace holdfast::sim {

/// Agents tell operations that have been in flight for longer than this.
constexpr double kLongS = 0.9;
/// A job compiles in its first iterations.
constexpr uint32_t kWarmUpIterations = 3;

/// Arrival times on the clock of whoever listens.
Clock::TimePoint ListenerTime(double true_s);

class Trace {
 public:
  Trace(const Scenario& scenario, uint64_t seed);

  /// Simulates one more iteration, or one more second where nothing moves.
  void Advance();
  /// Everything that arrives before this true time is queued.
  double horizon_s() const { return horizon_s_; }
  struct Delivery {
    double at_s = 0;
    std::unique_ptr<detect::Digest> digest;
  };
  /// The next digest that arrives by `until_s`, in order of arrival.
  std::optional<Delivery> Next(double until_s);
  /// Agents of these communicators' members send per-peer sums from now on.
  void WantPeerSums(const std::vector<detect::CommId>& comms) { wanted_ = comms; }

  const Truth& truth() const { return truth_; }
  const Job& job() const { return job_; }
  uint32_t iteration() const { return iteration_; }
  /// Iterations between two true times; where nothing moves, at the pace before.
  double IterationsBetween(double from_s, double to_s) const;
  detect::CommId IdOf(uint32_t family, uint32_t group) const;

 private:
  struct Node {
    double offset_s = 0;
    double rate = 1;  // of its clock
    double next_s = 0;
    double lost_at_s = 1e18;
    uint64_t number = 0;
    std::vector<detect::Collective> done;  // not yet told, with true stop times beside
    std::vector<double> done_at_s;
    struct LongOperation {
      detect::InFlight flight;
      double start_s = 0;
      double stop_s = 0;
    };
    std::vector<LongOperation> long_operations;
    std::vector<detect::PeerSums> sums;
  };
  struct RankState {
    double t = 0;  // when the rank is ready for its next part; kStuck: never
    double speed = 1;
    double tokens = 1;  // experts
    double expert_bias = 0;
    double blocked_s = 0;
    double moved = 0;
    double step_end[3] = {};  // of the last iterations, newest last
    uint32_t step_of_end = 0;
    uint32_t ran = 0;                  // the last iteration that it began
    double checkpoint_from_s[2] = {};  // the last two, newest last
    double checkpoint_to_s[2] = {};
    bool stuck = false;
    bool silent_root = false;  // it is the cause, outside of any operation
  };

  // trace.cc: the job
  void PlaceFault();
  void BeginIteration();
  void Run(const Part& part, uint32_t index);
  void Compute(const Part& part);
  void ComputeRank(uint32_t rank, double seconds);
  void Strike(const Part& part, uint32_t index);
  void Checkpoint();
  bool Active(uint32_t rank) const;
  // collective.cc
  void Collective(const Part& part);
  void CollectiveOf(const Part& part, uint32_t group, uint64_t seq);
  void Block(const Part& part, uint32_t group, uint64_t seq);
  void DropEdge(const Part& part, uint32_t group, uint64_t seq);
  void Mismatch(const Part& part, uint32_t group, uint64_t seq);
  double LinkFactor(const Part& part, uint32_t group) const;
  void PeerSumsOf(const Part& part, uint32_t group, double transfer_s);
  bool HotEdge(uint32_t from, uint32_t to) const;
  void Pipeline(const Part& part);
  void Stick(uint32_t rank, const detect::InFlight& flight, double at_s);
  void Transferred(uint32_t rank, detect::Collective& record, double from_s, double to_s);
  // telemetry.cc
  void Tell(double until_s);
  void TellNode(uint32_t index, double at_s);
  void TellRank(uint32_t rank, double at_s, detect::Digest& digest) const;
  void TellCompleted(uint32_t rank, double at_s, detect::Digest& digest) const;
  void TellCommunicators(uint32_t first, uint32_t end, detect::Digest& digest) const;
  void TellDone(Node& node, double at_s, detect::Digest& digest) const;
  void TellEnqueued(uint32_t index, double at_s, detect::Digest& digest) const;
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
  std::vector<std::vector<uint64_t>> seq_;  // by family and func
  /// The collectives of an iteration, and when each rank left them in its last two.
  struct Place {
    uint32_t family = 0;
    detect::Func func = detect::Func::kOther;
  };
  std::vector<Place> places_;
  /// The places of each kind of collective.
  std::vector<std::vector<size_t>> kinds_;
  std::vector<std::vector<detect::Communicator>> communicators_;  // as told, by family and group
  std::vector<double> left_s_;  // by parity of the iteration, place, rank
  double& LeftAt(uint32_t iteration, size_t place, uint32_t rank) {
    return left_s_[((iteration & 1U) * places_.size() + place) * job_.world + rank];
  }
  size_t place_ = 0;  // of the collective that is being run
  uint32_t iteration_ = 0;
  double horizon_s_ = 0;
  double last_moved_s_ = 0;
  std::vector<double> began_s_;  // by iteration
  bool struck_ = false;
  uint32_t strike_part_ = 0;
  bool active_ = false;  // a fault that comes and goes is there in this iteration
  uint32_t active_left_ = 0;
  double link_slowdown_ = 1;
  std::vector<detect::CommId> wanted_;
  Truth truth_;

  struct Later {
    bool operator()(const Delivery& a, const Delivery& b) const { return a.at_s > b.at_s; }
  };
  std::vector<Delivery> queue_;  // a heap
};

}  // namespace holdfast::sim
