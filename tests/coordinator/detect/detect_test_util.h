#pragma once

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/detect/detector.h"

// A job of a few ranks, two on each node, whose digests a test writes by hand.

namespace holdfast::detect {

inline constexpr uint64_t kMs = 1'000'000;  // in ns
inline const Clock::TimePoint kNow(std::chrono::hours(1));
inline constexpr CollectiveKind kReduce = CollectiveKind::kAllReduce;
inline constexpr uint64_t kAll = 0xa;  // the communicator of all ranks

/// An operation that a rank has started.
inline RankFlight FlightOf(uint32_t rank, uint64_t communicator, CollectiveKind kind,
                           uint64_t sequence, double age_s, uint64_t bytes = 1024) {
  return {.rank = Rank{rank},
          .record = {.communicator = {communicator},
                     .sequence = sequence,
                     .bytes = bytes,
                     .kind = kind,
                     .dtype = 7},
          .started = true,
          .age_ns = static_cast<uint64_t>(age_s * 1e9)};
}

class FakeJob {
 public:
  explicit FakeJob(uint32_t world) : world_(world), detector(Incarnation{1}, world) {}

  Clock::TimePoint now() const { return Clock::TimePoint(std::chrono::hours(1)) + at_; }
  void Advance(std::chrono::milliseconds time) { at_ += time; }

  /// Returns a reference to the state that the rank's agent reports from now on.
  RankState& state(uint32_t rank) {
    Grow();
    return states_[rank];
  }
  void AddComm(uint64_t id, CommunicatorRole role, const std::vector<uint32_t>& members) {
    Communicator communicator{.id = {id}, .role = role};
    for (uint32_t rank : members) communicator.members.push_back(Rank{rank});
    communicators_.push_back(communicator);
  }
  void AddFlight(uint32_t rank, uint64_t communicator, CollectiveKind kind, uint64_t sequence,
                 double age_s, uint64_t bytes = 1024, std::optional<PeerEdge> edge = {},
                 bool started = true) {
    flights_.push_back(FlightOf(rank, communicator, kind, sequence, age_s, bytes));
    flights_.back().edge = edge;
    flights_.back().started = started;
  }
  void ClearFlights() { flights_.clear(); }
  /// Completes operations 0 … count − 1 of the communicator on all its ranks.
  void Complete(uint64_t communicator, uint64_t count,
                CollectiveKind kind = CollectiveKind::kAllReduce) {
    for (const Communicator& known : communicators_) {
      if (known.id != CommunicatorId{communicator}) continue;
      for (Rank rank : known.members) CompleteOf(rank.value, communicator, count, kind);
    }
  }
  /// Completes operations 0 … count − 1 of the communicator on one of its ranks.
  void CompleteOf(uint32_t rank, uint64_t communicator, uint64_t count,
                  CollectiveKind kind = CollectiveKind::kAllReduce) {
    completed_.push_back({Rank{rank}, {{communicator}, kind, count}});
  }
  /// Makes all nodes probe all others. `cut`: pairs of nodes whose link is cut. `faulty`: a node
  /// that reports of every other node that it did not answer.
  void ProbeOthers(const std::set<std::pair<uint32_t, uint32_t>>& cut, uint32_t faulty = ~0U) {
    cut_ = cut;
    faulty_ = faulty;
    probes_ = true;
  }

  Digest DigestOf(uint32_t node) {
    Grow();
    Digest digest;
    digest.node = "n" + std::to_string(node);
    digest.incarnation = Incarnation{1};
    digest.world = world_;
    digest.agent_start = 1;
    digest.number = ++numbers_[node];
    // Each node has its own clock.
    digest.taken_ns = static_cast<uint64_t>((at_ + std::chrono::hours(node + 1)).count());
    for (uint32_t rank = 2 * node; rank < std::min(2 * node + 2, world_); ++rank) {
      digest.ranks.push_back(states_[rank]);
    }
    digest.communicators = communicators_;
    for (const RankFlight& flight : flights_) {
      if (flight.rank.value / 2 == node) digest.in_flight.push_back(flight);
    }
    for (const RankCompleted& completed : completed_) {
      if (completed.rank.value / 2 == node) digest.completed.push_back(completed);
    }
    for (uint32_t other = 0; probes_ && other < (world_ + 1) / 2; ++other) {
      const bool passes =
          node != faulty_ && cut_.count({node, other}) == 0 && cut_.count({other, node}) == 0;
      if (other != node) digest.reach.push_back({"n" + std::to_string(other), passes});
    }
    return digest;
  }
  /// Observes the digests of all agents and evaluates.
  std::vector<Verdict> Evaluate() {
    for (uint32_t node = 0; node < (world_ + 1) / 2; ++node) {
      if (silent_node != node) detector.Observe(DigestOf(node), now());
    }
    return detector.Evaluate(now());
  }

  uint32_t silent_node = ~0U;  // a node that sends no digests

 private:
  void Grow() {
    if (!states_.empty()) return;
    states_.resize(world_);
    numbers_.resize((world_ + 1) / 2);
    for (uint32_t rank = 0; rank < world_; ++rank) {
      states_[rank].rank = Rank{rank};
      states_[rank].step = 100;
      states_[rank].process_state = 'S';
    }
  }

  const uint32_t world_;
  Clock::Duration at_{0};
  std::vector<RankState> states_;
  std::vector<uint64_t> numbers_;
  std::vector<Communicator> communicators_;
  std::vector<RankFlight> flights_;
  std::vector<RankCompleted> completed_;
  std::set<std::pair<uint32_t, uint32_t>> cut_;
  uint32_t faulty_ = ~0U;
  bool probes_ = false;

 public:
  Detector detector;
};

/// Six ranks in one communicator. The given ranks have been in its operation 5 for `age_s`.
inline FakeJob InOperation(const std::vector<uint32_t>& ranks, double age_s) {
  FakeJob job(6);
  job.AddComm(kAll, CommunicatorRole::kData, {0, 1, 2, 3, 4, 5});
  job.Complete(kAll, 4);
  job.Evaluate();
  job.Evaluate();  // now all communicators are confirmed
  job.Advance(std::chrono::seconds(70));
  job.Evaluate();
  for (uint32_t rank : ranks) job.AddFlight(rank, kAll, kReduce, 5, age_s);
  return job;
}

}  // namespace holdfast::detect
