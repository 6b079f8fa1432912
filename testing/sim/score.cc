#include "testing/sim/score.h"

#include <algorithm>
#include <set>

#include "testing/sim/trace.h"

namespace holdfast::sim {

using detect::FaultClass;
using detect::Verdict;

namespace {

/// Returns a key that is equal for verdicts of the same class and blame.
std::vector<uint32_t> KeyOf(const Verdict& verdict) {
  std::vector<uint32_t> key = {static_cast<uint32_t>(verdict.fault)};
  if (verdict.edge) {
    key.insert(key.end(), {~0U, verdict.edge->from.value, verdict.edge->to.value});
  }
  for (Rank rank : verdict.ranks) key.push_back(rank.value);
  return key;
}

class Judge {
 public:
  explicit Judge(const Trace& trace) : trace_(trace) {}

  bool RightClass(const Verdict& verdict) const {
    const auto right = RightClasses(trace_.truth().kind);
    return std::find(right.begin(), right.end(), verdict.fault) != right.end();
  }

  /// Adds the faulty ranks that the verdict names to `found`. Returns false if it blames anything
  /// else.
  bool Blames(const Verdict& verdict, std::set<uint32_t>& found) const {
    const Truth& truth = trace_.truth();
    const std::set<uint32_t> faulty(truth.ranks.begin(), truth.ranks.end());
    switch (truth.kind) {
      case FaultKind::kDroppedEdge:
      case FaultKind::kSlowEdge:
      case FaultKind::kLatency:
        if (!verdict.edge || verdict.edge->from.value != truth.ranks.front() ||
            verdict.edge->to.value != truth.peer) {
          return false;
        }
        found = faulty;
        return true;
      case FaultKind::kSlowSend:
      case FaultKind::kSlowReceive:
        return BlamesPort(verdict, found);
      case FaultKind::kMismatched:
      case FaultKind::kSkipped:
        if (verdict.ranks.empty() && OnlyPairs()) {
          found = faulty;  // if two ranks differ, neither is the odd one
          return true;
        }
        [[fallthrough]];
      default:
        for (Rank rank : verdict.ranks) {
          if (faulty.count(rank.value) == 0) return false;
          found.insert(rank.value);
        }
        return !verdict.ranks.empty();
    }
  }

 private:
  bool OnlyPairs() const {
    const Family& family = trace_.job().families[trace_.job().data_family];
    return family.groups.front().size() == 2;
  }

  /// With fewer than three connections in a direction, a slow rank looks like a slow connection.
  bool BlamesPort(const Verdict& verdict, std::set<uint32_t>& found) const {
    const Truth& truth = trace_.truth();
    const uint32_t rank = truth.ranks.front();
    const Family& family = trace_.job().families[trace_.job().data_family];
    const auto size = static_cast<uint32_t>(family.groups[family.group_of[rank]].size());
    const bool sends = truth.kind == FaultKind::kSlowSend;
    bool right = verdict.ranks == std::vector<Rank>{Rank{rank}};
    if (Neighbours(0, size).size() < 3) {
      right = verdict.edge && (sends ? verdict.edge->from : verdict.edge->to).value == rank;
    }
    if (right) found.insert(rank);
    return right;
  }

  const Trace& trace_;
};

}  // namespace

std::vector<FaultClass> RightClasses(FaultKind kind) {
  switch (kind) {
    case FaultKind::kNone:
      return {};
    case FaultKind::kKilled:
    case FaultKind::kNodeLost:
      return {FaultClass::kDead};
    case FaultKind::kStopped:
    case FaultKind::kInfiniteKernel:
    case FaultKind::kCpuSpin:
    case FaultKind::kLoaderSleep:
    case FaultKind::kTwoStopped:
      return {FaultClass::kComputeHang};
    // The position of the skipped operation decides which of the two it looks like. Both evict no
    // node.
    case FaultKind::kMismatched:
      return {FaultClass::kSoftwareMismatch};
    case FaultKind::kSkipped:
      return {FaultClass::kSoftwareMismatch, FaultClass::kProgramDeadlock};
    case FaultKind::kDroppedEdge:
      return {FaultClass::kCommHang};
    case FaultKind::kSlowEdge:
    case FaultKind::kSlowSend:
    case FaultKind::kSlowReceive:
    case FaultKind::kLatency:
      return {FaultClass::kCommSlow};
    case FaultKind::kSlowGpu:
    case FaultKind::kIntermittent:
    case FaultKind::kTwoSlow:
      return {FaultClass::kComputeSlow};
  }
  return {};
}

RunLimits LimitsFor(const Scenario& scenario) {
  RunLimits limits;
  if (scenario.fault == FaultKind::kNone) {
    limits.iterations_after = scenario.world <= 8 ? 3000 : scenario.world <= 64 ? 800 : 100;
    if (scenario.world > 1024) limits.iterations_after = 60;
  } else if (scenario.fault == FaultKind::kIntermittent) {
    limits.iterations_after = scenario.duty < 0.3 ? 400 : 150;
  } else if (scenario.fault == FaultKind::kSlowGpu || scenario.fault == FaultKind::kTwoSlow) {
    // A small slowdown needs many iterations to exceed the noise.
    limits.iterations_after = scenario.magnitude < 0.1 ? 200 : 150;
  } else {
    // Slow transfers count as congestion for the first twenty seconds.
    limits.iterations_after = 150;
  }
  return limits;
}

Outcome RunScenario(const Scenario& scenario, uint64_t seed, const RunLimits& limits) {
  Trace trace(scenario, seed);
  detect::Detector detector(Incarnation{1}, scenario.world);
  const Judge judge(trace);
  Outcome outcome;
  std::set<std::vector<uint32_t>> seen;
  std::set<uint32_t> found;
  uint32_t ticks_left = limits.ticks_after;
  double tick_s = limits.tick_s;
  for (bool done = false; !done;) {
    trace.Advance();
    for (; tick_s <= trace.horizon_s() && !done; tick_s += limits.tick_s) {
      while (auto delivery = trace.Next(tick_s)) {
        detector.Observe(*delivery->digest, DetectorTime(delivery->at_s));
      }
      const Truth& truth = trace.truth();
      for (const Verdict& verdict : detector.Evaluate(DetectorTime(tick_s))) {
        const bool new_one = seen.insert(KeyOf(verdict)).second;
        if (new_one) outcome.reported.push_back(verdict);
        std::set<uint32_t> named;
        const bool right = judge.RightClass(verdict) && tick_s >= truth.onset_s;
        const bool exact = judge.Blames(verdict, named);
        // A verdict of the right class that names other ranks is false, and still counts as found.
        if (!right || (!verdict.ranks.empty() && !exact)) {
          if (new_one) outcome.wrong.push_back(verdict.fault);
          if (!right) continue;
        }
        if (!outcome.detected) {
          outcome.detected = true;
          outcome.latency_s = tick_s - truth.onset_s;
          outcome.latency_iterations = trace.IterationsBetween(truth.onset_s, tick_s);
        }
        if (exact) found.insert(named.begin(), named.end());
        outcome.exact = found.size() == truth.ranks.size();
      }
      trace.WantTransfers(detector.wanted_transfers());
      if (outcome.exact && ticks_left-- == 0) done = true;
      if (IsHang(truth.kind) && tick_s > truth.onset_s + limits.seconds_after) done = true;
    }
    const uint32_t from = scenario.fault == FaultKind::kNone ? 0 : trace.truth().onset_iteration;
    if (!IsHang(scenario.fault) && trace.iteration() >= from + limits.iterations_after) done = true;
  }
  outcome.job_s = tick_s;
  outcome.counters = detector.counters();
  return outcome;
}

}  // namespace holdfast::sim
