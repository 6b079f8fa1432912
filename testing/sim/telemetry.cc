#include <algorithm>

#include "testing/sim/trace.h"

// The digests of the simulated job's agents, and how they are lost or delayed.

namespace holdfast::sim {

using detect::Digest;
using detect::RankFlight;

namespace {

constexpr double kReportPeriodS = 1;

}  // namespace

void Trace::ReportUntil(double until_s) {
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (truth_.kind == FaultKind::kKilled && injected_ &&
        truth_.ranks.front() / job_.ranks_per_node == i && node.lost_at_s > 1e17) {
      // The agent reports a death at once.
      node.lost_at_s = 1e17;
      ReportNode(i, truth_.onset_s + 0.02);
    }
    for (; node.next_s <= until_s; node.next_s += kReportPeriodS) {
      if (node.next_s < node.lost_at_s) ReportNode(i, node.next_s);
    }
  }
}

void Trace::ReportRank(uint32_t rank, double at_s, Digest& digest) const {
  const RankState& state = ranks_[rank];
  detect::RankState report;
  report.rank = Rank{rank};
  int newest = 2;
  while (newest >= 0 && state.step_end[newest] > at_s) --newest;
  report.step = state.step_of_end + static_cast<uint32_t>(newest) < 2
                    ? 0
                    : state.step_of_end + static_cast<uint32_t>(newest) - 2;
  const double step_at = newest >= 0 ? state.step_end[newest] : 0;
  report.since_step_ns = static_cast<uint64_t>(std::max(0.0, at_s - step_at) * 1e9);
  if (report.step < kWarmUpIterations) {
    report.phases |= static_cast<uint8_t>(detect::Phase::kCompile);
  }
  for (int i : {0, 1}) {
    if (at_s >= state.checkpoint_from_s[i] && at_s - kReportPeriodS < state.checkpoint_to_s[i] &&
        state.checkpoint_to_s[i] > 0) {
      report.phases |= static_cast<uint8_t>(detect::Phase::kCheckpoint);
    }
  }
  if (rank % job_.ranks_per_node == 0) {
    for (int i = std::max(1, newest - 1); i <= newest; ++i) {
      if (state.step_end[i] > at_s - kReportPeriodS && state.step_end[i - 1] > 0) {
        report.steps.push_back(
            {state.step_of_end - 2 + static_cast<uint32_t>(i),
             static_cast<uint64_t>((state.step_end[i] - state.step_end[i - 1]) * 1e9)});
      }
    }
  }
  report.process_state = 'R';
  if (state.is_root && at_s >= state.t) {
    switch (truth_.kind) {
      case FaultKind::kStopped:
      case FaultKind::kTwoStopped:
        report.process_state = 'T';
        report.silent_ns = static_cast<uint64_t>((at_s - state.t) * 1e9);
        break;
      case FaultKind::kKilled:
        report.alive = false;
        report.process_state = 'X';
        break;
      case FaultKind::kLoaderSleep:
        report.process_state = 'S';
        break;
      default:
        break;
    }
  }
  digest.ranks.push_back(std::move(report));
}

void Trace::ReportNode(uint32_t index, double at_s) {
  Node& node = nodes_[index];
  Digest digest;
  digest.node = "n" + std::to_string(index);
  digest.incarnation = Incarnation{1};
  digest.world = job_.world;
  digest.agent_start = 1;
  digest.number = ++node.number;
  digest.taken_ns = LocalNs(node, at_s);
  const uint32_t first = index * job_.ranks_per_node;
  const uint32_t end = std::min(first + job_.ranks_per_node, job_.world);
  digest.ranks.reserve(end - first);
  digest.completed.reserve((end - first) * kinds_.size());
  for (uint32_t rank = first; rank < end; ++rank) ReportRank(rank, at_s, digest);
  if (node.number <= 2 || node.number % 16 == 0) ReportCommunicators(first, end, digest);
  ReportDone(node, at_s, digest);
  for (uint32_t rank = first; rank < end; ++rank) ReportCompleted(rank, at_s, digest);
  ReportEnqueued(index, at_s, digest);
  digest.peers = std::move(node.sums);
  node.sums.clear();
  Send(at_s, std::move(digest));
}

void Trace::ReportCommunicators(uint32_t first, uint32_t end, Digest& digest) const {
  for (uint32_t f = 0; f < job_.families.size(); ++f) {
    std::vector<uint32_t> added;
    for (uint32_t rank = first; rank < end; ++rank) {
      const uint32_t group = job_.families[f].group_of[rank];
      if (std::find(added.begin(), added.end(), group) != added.end()) continue;
      added.push_back(group);
      digest.communicators.push_back(communicators_[f][group]);
    }
  }
  for (uint32_t rank = first; job_.stages > 1 && rank < end; ++rank) {
    const uint32_t replicas = job_.world / job_.stages;
    Communicator pipeline{.id = IdOf(static_cast<uint32_t>(job_.families.size()), rank % replicas),
                          .role = CommunicatorRole::kPipeline};
    for (uint32_t stage = 0; stage < job_.stages; ++stage) {
      pipeline.members.push_back(Rank{stage * replicas + rank % replicas});
    }
    digest.communicators.push_back(std::move(pipeline));
  }
}

void Trace::ReportDone(Node& node, double at_s, Digest& digest) const {
  size_t kept = 0;
  digest.ended.reserve(node.done.size());
  for (size_t i = 0; i < node.done.size(); ++i) {
    if (node.done_at_s[i] <= at_s) {
      digest.ended.push_back(node.done[i]);
    } else {
      node.done[kept] = node.done[i];
      node.done_at_s[kept++] = node.done_at_s[i];
    }
  }
  node.done.resize(kept);
  node.done_at_s.resize(kept);
  std::erase_if(node.long_operations,
                [&](const Node::LongOperation& operation) { return operation.stop_s <= at_s; });
  for (const Node::LongOperation& operation : node.long_operations) {
    if (operation.start_s > at_s - kReportedAgeS) continue;
    RankFlight flight = operation.flight;
    flight.age_ns = static_cast<uint64_t>((at_s - operation.start_s) * node.rate * 1e9);
    digest.in_flight.push_back(flight);
  }
}

void Trace::ReportCompleted(uint32_t rank, double at_s, Digest& digest) const {
  const uint32_t ran = ranks_[rank].ran;
  for (const std::vector<size_t>& kind : kinds_) {
    uint64_t count = ran < 2 ? 0 : static_cast<uint64_t>(kind.size()) * (ran - 1);
    for (const size_t place : kind) {
      for (uint32_t parity = 0; parity < 2; ++parity) {
        count += left_s_[(parity * places_.size() + place) * job_.world + rank] <= at_s ? 1 : 0;
      }
    }
    const auto [family, collective] = places_[kind.front()];
    digest.completed.push_back(
        {Rank{rank}, {IdOf(family, job_.families[family].group_of[rank]), collective, count}});
  }
}

void Trace::ReportEnqueued(uint32_t index, double at_s, Digest& digest) const {
  const uint32_t rank = truth_.ranks.front();
  if (truth_.kind != FaultKind::kInfiniteKernel || !injected_ ||
      at_s < truth_.onset_s + kReportedAgeS || rank / job_.ranks_per_node != index) {
    return;
  }
  // The CPU ran ahead and enqueued the next operation.
  uint32_t part = fault_part_;
  while (job_.parts[part].kind != Part::Kind::kCollective) ++part;
  const Part& next = job_.parts[part];
  const uint32_t group = job_.families[next.family].group_of[rank];
  const RankFlight flight{.rank = Rank{rank},
                          .record = RecordOf(next, group, 0),
                          .age_ns = static_cast<uint64_t>((at_s - truth_.onset_s) * 1e9)};
  digest.in_flight.push_back(flight);
}

void Trace::Send(double at_s, Digest digest) {
  if (noise_.Chance(conditions_.loss)) return;
  double delay = 0.002 + noise_.Exponential(0.01);
  if (noise_.Chance(conditions_.late_chance)) delay += noise_.Uniform(0.2, conditions_.late_s_max);
  if (noise_.Chance(conditions_.repeat_chance)) {
    const double again_s = at_s + delay + noise_.Exponential(0.5);
    queue_.push_back({again_s, std::make_unique<Digest>(digest)});
    std::push_heap(queue_.begin(), queue_.end(), Later());
  }
  queue_.push_back({at_s + delay, std::make_unique<Digest>(std::move(digest))});
  std::push_heap(queue_.begin(), queue_.end(), Later());
}

}  // namespace holdfast::sim
