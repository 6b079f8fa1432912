#include "testing/sim/trace.h"

#include <algorithm>
#include <cmath>

namespace holdfast::sim {

namespace {

constexpr double kNever = 1e18;

}  // namespace

Clock::TimePoint DetectorTime(double true_s) {
  return Clock::TimePoint(std::chrono::nanoseconds(static_cast<int64_t>((true_s + 5000) * 1e9)));
}

CommunicatorId Trace::IdOf(uint32_t family, uint32_t group) const {
  return CommunicatorId{(uint64_t{family} + 1) << 32U |
                        (uint64_t{group} * 2654435761U & 0xffffffffU)};
}

Trace::Trace(const Scenario& scenario, uint64_t seed)
    : scenario_(scenario),
      conditions_(scenario.conditions),
      job_(MakeJob(scenario.shape, scenario.world)),
      noise_(Random(seed).Next()),  // makes neighbouring seeds independent
      ranks_(scenario.world),
      nodes_(job_.nodes()),
      seq_(job_.families.size(), std::vector<uint64_t>(kCollectiveKinds)) {
  nominal_s_ = noise_.Uniform(0.5, 1.5);
  if (job_.stages > 1) {
    job_.stage_load.front() = conditions_.first_stage;
    job_.stage_load.back() = conditions_.last_stage;
  }
  for (RankState& rank : ranks_) {
    rank.t = noise_.Uniform(0, 0.2);
    rank.speed = std::exp(conditions_.silicon_sigma * noise_.Normal());
    rank.expert_bias = conditions_.expert_sigma * noise_.Normal();
  }
  for (Node& node : nodes_) {
    node.offset_s = noise_.Uniform(-conditions_.clock_offset_s, conditions_.clock_offset_s);
    node.rate =
        1 + 1e-6 * noise_.Uniform(-conditions_.clock_drift_ppm, conditions_.clock_drift_ppm);
    node.next_s = noise_.Uniform(0, 1);
  }
  for (const Part& part : job_.parts) {
    if (part.kind != Part::Kind::kCollective) continue;
    auto kind = std::find_if(kinds_.begin(), kinds_.end(), [&](const auto& known) {
      const Place& place = places_[known.front()];
      return place.family == part.family && place.collective == part.collective;
    });
    if (kind == kinds_.end()) kind = kinds_.emplace(kinds_.end());
    kind->push_back(places_.size());
    places_.push_back({part.family, part.collective});
  }
  for (uint32_t f = 0; f < job_.families.size(); ++f) {
    std::vector<Communicator>& communicators = communicators_.emplace_back();
    for (const auto& group : job_.families[f].groups) {
      Communicator communicator{.id = IdOf(f, static_cast<uint32_t>(communicators.size())),
                                .role = job_.families[f].role};
      for (const uint32_t member : group) communicator.members.push_back(Rank{member});
      communicators.push_back(std::move(communicator));
    }
  }
  left_s_.assign(2 * places_.size() * job_.world, kNever);
  PlaceFault();
}

void Trace::PlaceFault() {
  const FaultKind kind = scenario_.fault;
  truth_.kind = kind;
  truth_.onset_iteration = kind == FaultKind::kNone ? ~0U
                           : IsHang(kind) ? 6 + static_cast<uint32_t>(noise_.random().Below(4))
                                          : 14 + static_cast<uint32_t>(noise_.random().Below(5));
  const auto first = static_cast<uint32_t>(noise_.random().Below(job_.world));
  truth_.ranks = {first};
  truth_.onset_s = kNever;
  if (kind == FaultKind::kTwoStopped || kind == FaultKind::kTwoSlow) {
    // Not in the same communicator of two, where each would be compared with the other.
    const uint32_t second =
        (first + job_.world / 2 + 1 + static_cast<uint32_t>(noise_.random().Below(2))) % job_.world;
    truth_.ranks.push_back(second);
    std::sort(truth_.ranks.begin(), truth_.ranks.end());
  }
  const Family& family = job_.families[job_.data_family];
  const auto& group = family.groups[family.group_of[first]];
  const auto position =
      static_cast<uint32_t>(std::find(group.begin(), group.end(), first) - group.begin());
  const auto neighbours = Neighbours(position, static_cast<uint32_t>(group.size()));
  truth_.peer = group[neighbours[noise_.random().Below(neighbours.size())]];
  link_slowdown_ = noise_.Uniform(1.5, 4);
  if (kind == FaultKind::kLatency) link_slowdown_ = noise_.Uniform(1.3, 2);
  // The part of the iteration in which the fault takes effect.
  std::vector<uint32_t> candidates;
  for (uint32_t i = 0; i < job_.parts.size(); ++i) {
    const Part& part = job_.parts[i];
    const bool transfer = part.kind == Part::Kind::kCollective;
    bool fits = !transfer;
    if (kind == FaultKind::kDroppedEdge) fits = transfer && part.family == job_.data_family;
    if (kind == FaultKind::kMismatched)
      fits = transfer && part.collective != CollectiveKind::kAllToAll;
    if (kind == FaultKind::kSkipped) {
      // The communicator's next operation must differ. Otherwise it takes the place of the skipped
      // one.
      uint32_t next = (i + 1) % job_.parts.size();
      while (job_.parts[next].kind != Part::Kind::kCollective ||
             job_.parts[next].family != part.family) {
        next = (next + 1) % job_.parts.size();
      }
      fits =
          transfer && part.collective != CollectiveKind::kAllToAll &&
          (job_.parts[next].collective != part.collective || job_.parts[next].bytes != part.bytes);
    }
    if (fits) candidates.push_back(i);
  }
  if (candidates.empty()) candidates.push_back(0);
  fault_part_ = candidates[noise_.random().Below(candidates.size())];
}

bool Trace::Active(uint32_t rank) const {
  return active_ && std::binary_search(truth_.ranks.begin(), truth_.ranks.end(), rank);
}

void Trace::BeginIteration() {
  for (uint32_t rank = 0; rank < job_.world; ++rank) {
    RankState& state = ranks_[rank];
    if (!state.stuck) {
      state.ran = iteration_;
      for (size_t place = 0; place < places_.size(); ++place) {
        LeftAt(iteration_, place, rank) = kNever;
      }
    }
    state.expert_bias += conditions_.expert_walk * noise_.Normal() -
                         0.01 * state.expert_bias;  // load balancing reduces the bias
  }
  // The experts of one communicator share the tokens that its ranks sent.
  for (uint32_t f = 0; f < job_.families.size(); ++f) {
    if (job_.families[f].role != CommunicatorRole::kExpert) continue;
    for (const auto& group : job_.families[f].groups) {
      double sum = 0;
      for (uint32_t rank : group) {
        ranks_[rank].tokens = std::exp(ranks_[rank].expert_bias + 0.05 * noise_.Normal());
        sum += ranks_[rank].tokens;
      }
      for (uint32_t rank : group) {
        ranks_[rank].tokens *= static_cast<double>(group.size()) / sum;
      }
    }
  }
  if (job_.shape != Shape::kExperts) {
    // Ranks of one replica share their sequences.
    std::vector<double> lengths(job_.world);
    for (double& length : lengths) length = noise_.LogNormal(conditions_.sequence_sigma);
    for (uint32_t rank = 0; rank < job_.world; ++rank) {
      ranks_[rank].tokens = lengths[job_.replica_of[rank]];
    }
  }
  if (iteration_ >= truth_.onset_iteration && !IsHang(truth_.kind)) {
    if (truth_.onset_s == kNever) {
      truth_.onset_s = last_moved_s_;
      active_ = scenario_.duty >= 1;
    }
    if (scenario_.duty < 1) {
      if (active_left_ == 0) {
        active_ = !active_;
        const double mean = active_ ? 3 : 3 * (1 - scenario_.duty) / scenario_.duty;
        active_left_ = 1 + static_cast<uint32_t>(noise_.Exponential(mean - 0.5));
      }
      --active_left_;
    }
  }
}

void Trace::ComputeRank(uint32_t rank, double seconds) {
  RankState& state = ranks_[rank];
  const uint64_t bits = noise_.random().Next();
  double time = seconds * state.speed * (1 + conditions_.compute_sigma * Noise::Normal(bits));
  if (Active(rank) &&
      (truth_.kind == FaultKind::kSlowGpu || truth_.kind == FaultKind::kIntermittent ||
       truth_.kind == FaultKind::kTwoSlow)) {
    time += seconds * state.speed * scenario_.magnitude;
  }
  if (static_cast<double>(bits >> 40U) * 0x1p-24 < conditions_.tail_chance) {
    time += noise_.Pareto(0.002, 1.2, 0.5);
  }
  state.t += time;
}

void Trace::Compute(const Part& part) {
  const double seconds = part.share * nominal_s_;
  for (uint32_t rank = 0; rank < job_.world; ++rank) {
    if (ranks_[rank].stuck) continue;
    // Most of the time is proportional to the tokens, and a tenth is constant.
    const bool varies = part.load == Load::kExpert || job_.shape != Shape::kExperts;
    const double load = varies ? 0.1 + 0.9 * ranks_[rank].tokens : 1;
    ComputeRank(rank, seconds * load);
  }
}

void Trace::InjectHang(const Part& part, uint32_t index) {
  if (injected_ || !IsHang(truth_.kind) || iteration_ != truth_.onset_iteration ||
      index != fault_part_ || part.kind == Part::Kind::kCollective) {
    return;
  }
  injected_ = true;
  truth_.onset_s = 0;
  if (truth_.kind == FaultKind::kNodeLost) {
    const uint32_t node = truth_.ranks.front() / job_.ranks_per_node;
    truth_.ranks.clear();
    for (uint32_t i = 0; i < job_.ranks_per_node; ++i) {
      truth_.ranks.push_back(node * job_.ranks_per_node + i);
    }
  }
  for (uint32_t rank : truth_.ranks) {
    RankState& state = ranks_[rank];
    state.t += part.share * nominal_s_ * noise_.random().Unit();
    state.stuck = true;
    state.is_root = true;
    truth_.onset_s = std::max(truth_.onset_s, state.t);
  }
  if (truth_.kind == FaultKind::kNodeLost) {
    nodes_[truth_.ranks.front() / job_.ranks_per_node].lost_at_s = truth_.onset_s;
  }
}

void Trace::Checkpoint() {
  if (!noise_.Chance(1 / conditions_.checkpoint_every_iterations)) return;
  for (uint32_t rank = 0; rank < job_.world; ++rank) {
    RankState& state = ranks_[rank];
    if (state.stuck) continue;
    if (conditions_.checkpoint_by_some && job_.replica_of[rank] != job_.replica_of[0]) continue;
    state.checkpoint_from_s[0] = state.checkpoint_from_s[1];
    state.checkpoint_to_s[0] = state.checkpoint_to_s[1];
    state.checkpoint_from_s[1] = state.t;
    state.t += conditions_.checkpoint_s * noise_.LogNormal(0.4);
    state.checkpoint_to_s[1] = state.t;
  }
}

void Trace::Run(const Part& part, uint32_t index) {
  InjectHang(part, index);
  switch (part.kind) {
    case Part::Kind::kCompute:
      Compute(part);
      break;
    case Part::Kind::kCollective:
      Collective(part);
      ++place_;
      break;
    case Part::Kind::kPipeline:
      Pipeline(part);
      break;
  }
}

void Trace::Advance() {
  const bool moves =
      std::any_of(ranks_.begin(), ranks_.end(), [](const RankState& rank) { return !rank.stuck; });
  // All ranks are stuck: only time passes, and agents keep reporting.
  if (!moves) {
    horizon_s_ = std::max(horizon_s_, last_moved_s_) + 1;
    ReportUntil(horizon_s_);
    return;
  }
  began_s_.push_back(last_moved_s_);
  BeginIteration();
  place_ = 0;
  for (uint32_t i = 0; i < job_.parts.size(); ++i) Run(job_.parts[i], i);
  for (uint32_t rank = 0; rank < job_.world; ++rank) {
    RankState& state = ranks_[rank];
    if (state.stuck) continue;
    if (iteration_ < kWarmUpIterations) state.t += nominal_s_ * noise_.Uniform(0.2, 0.6);
    if (noise_.Chance(1 / conditions_.pause_every_iterations)) {
      state.t += 0.08 * noise_.LogNormal(0.6);
    }
    if (rank == 0 && iteration_ % 10 == 9) state.t += noise_.Uniform(0.005, 0.02);  // logs
    state.step_end[0] = state.step_end[1];
    state.step_end[1] = state.step_end[2];
    state.step_end[2] = state.t;
    state.step_of_end = iteration_ + 1;
  }
  Checkpoint();
  double least = kNever;
  for (const RankState& rank : ranks_) {
    if (rank.stuck) continue;
    least = std::min(least, rank.t);
    last_moved_s_ = std::max(last_moved_s_, rank.t);
  }
  ++iteration_;
  if (least < kNever) {
    horizon_s_ = std::max(horizon_s_, least);
    ReportUntil(horizon_s_);
  }
}

double Trace::IterationsBetween(double from_s, double to_s) const {
  auto at = [&](double time_s) {
    const auto next = std::upper_bound(began_s_.begin(), began_s_.end(), time_s);
    const auto index = static_cast<double>(next - began_s_.begin());
    if (next != began_s_.end() || began_s_.size() < 2) return index;
    const double pace = began_s_.back() / static_cast<double>(began_s_.size() - 1);
    return index + (time_s - began_s_.back()) / pace;
  };
  return at(to_s) - at(from_s);
}

std::optional<Trace::Delivery> Trace::Next(double until_s) {
  if (queue_.empty() || queue_.front().at_s > until_s) return std::nullopt;
  std::pop_heap(queue_.begin(), queue_.end(), Later());
  Delivery delivery = std::move(queue_.back());
  queue_.pop_back();
  return delivery;
}

}  // namespace holdfast::sim
