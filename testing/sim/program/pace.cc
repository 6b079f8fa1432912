#include "testing/sim/program/pace.h"

#include <algorithm>
#include <cmath>

#include "testing/sim/job.h"

namespace holdfast::sim::program {
namespace {

constexpr double kDrawnFor = 12'000;  // seconds of a job

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E37'79B9'7F4A'7C15 + b;
  x = (x ^ x >> 30) * 0xBF58'476D'1CE4'E5B9;
  x = (x ^ x >> 27) * 0x94D0'49BB'1331'11EB;
  return x ^ x >> 31;
}

}  // namespace

Pace::Pace(const Job& job, const Setting& setting, const std::vector<Fault>& faults, Noise& noise)
    : job_(job), setting_(setting), faults_(faults), noise_(noise.random().Next()) {
  std::vector<double> load(job.world, 1);  // by replica
  std::vector<uint32_t> ranks_of(job.world);
  for (const uint32_t replica : job.replica_of) ++ranks_of[replica];
  if (setting.replica_sigma > 0) {
    for (double& one : load) one = std::exp(setting.replica_sigma * noise_.Normal());
  }
  // Nodes with older GPUs come first, as schedulers fill one partition before the next.
  const auto old_nodes = static_cast<uint32_t>(std::lround(setting.slow_share * job.nodes()));
  for (uint32_t rank = 0; rank < job.world; ++rank) {
    const double generation = job.node_of(rank) < old_nodes ? setting.slow_factor : 1;
    const uint32_t replica = job.replica_of[rank];
    const double group = ranks_of[replica] > 1 ? load[replica] : 1;
    speed_.push_back(generation * group * std::exp(setting.silicon_sigma * noise_.Normal()));
    bias_.push_back(setting.expert_sigma * noise_.Normal());
  }
  for (uint32_t node = 0; node < job.nodes(); ++node) {
    phase_.push_back(noise_.Uniform(0, 6.283));
    period_s_.push_back(noise_.Uniform(120, 900));
  }
  DrawIntervals(noise_);
  for (const Channel& channel : job.channels) {
    std::vector<Link>& links = links_.emplace_back();
    if (!channel.crosses_nodes) continue;
    const auto n = static_cast<uint32_t>(channel.members.size());
    for (uint32_t i = 0; i < (channel.pair ? 1 : n); ++i) {
      for (const uint32_t to : channel.pair ? std::vector<uint32_t>{1} : Neighbours(i, n)) {
        if (job.node_of(channel.members[i]) == job.node_of(channel.members[to])) continue;
        links.push_back({channel.members[i], channel.members[to]});
      }
    }
  }
}

void Pace::DrawIntervals(Noise& noise) {
  const auto fill = [&](std::vector<Interval>& into, double every_s, double least_s,
                        double most_s) {
    for (double at = noise.Exponential(every_s) + 10; at < kDrawnFor;) {
      const double length = noise.Uniform(least_s, most_s);
      into.push_back({at, at + length, static_cast<uint32_t>(noise.random().Below(job_.nodes())),
                      noise.Uniform(1.3, 4), noise.random().Next()});
      at += length + noise.Exponential(every_s);
    }
  };
  if (setting_.wave_share > 0) fill(waves_, 60, 5, 60);
  if (setting_.flap_every_s > 0) fill(flaps_, setting_.flap_every_s, 0.5, 4);
  if (setting_.cron_s > 0) {
    for (double at = noise.Uniform(0, 60); at < kDrawnFor; at += 60) {
      cron_.push_back({at, at + setting_.cron_s,
                       static_cast<uint32_t>(noise.random().Below(job_.nodes())), 2, 0});
    }
  }
  slow_links_ = !waves_.empty();
  for (const Fault& fault : faults_) {
    slow_links_ |= fault.kind == FaultKind::kSlowNic || fault.kind == FaultKind::kLossyLink ||
                   fault.kind == FaultKind::kPcie;
    if (fault.kind != FaultKind::kIntermittent) continue;
    const double step = setting_.step_s;
    for (double at = fault.onset_s; at < fault.onset_s + kDrawnFor;) {
      const double length = step * (1 + noise.Exponential(5));
      bursts_.push_back({at, at + length, 0, 1 + fault.magnitude, 0});
      at += length + step * (1 + noise.Exponential(9));
    }
  }
}

namespace {

/// Returns the interval of an ascending list that contains `at_s`; nullptr if there is none.
template <typename Intervals>
auto At(const Intervals& intervals, double at_s) -> decltype(&intervals.front()) {
  auto after = std::upper_bound(intervals.begin(), intervals.end(), at_s,
                                [](double at, const auto& one) { return at < one.from_s; });
  if (after == intervals.begin()) return nullptr;
  --after;
  return at_s < after->to_s ? &*after : nullptr;
}

}  // namespace

double Pace::Thermal(uint32_t node, double at_s) const {
  if (setting_.thermal == 0) return 1;
  const double wave = std::sin(6.2832 * at_s / period_s_[node] + phase_[node]);
  return 1 + setting_.thermal * 0.5 * (1 + wave);
}

double Pace::SlowCompute(const Fault& fault, uint32_t rank, double at_s) {
  if (rank != fault.rank || at_s < fault.onset_s || at_s >= fault.heals_s) return 1;
  switch (fault.kind) {
    case FaultKind::kSlowGpu:
      return 1 + fault.magnitude;
    case FaultKind::kRamp: {
      const double length = std::max(200.0, 60 * setting_.step_s);
      return 1 + fault.magnitude * std::min(1.0, (at_s - fault.onset_s) / length);
    }
    case FaultKind::kIntermittent: {
      const Interval* burst = At(bursts_, at_s);
      return burst == nullptr ? 1 : burst->factor;
    }
    case FaultKind::kSlowCpu:
      // Kernels are launched late, each by a different time.
      return 1 + 2 * fault.magnitude * noise_.random().Unit();
    default:
      return 1;
  }
}

double Pace::Tokens(uint32_t rank, uint32_t iteration) const {
  // Load balancing keeps the bias constant, and batches differ.
  const double now = Noise::Normal(Mix(Mix(rank, 77), iteration));
  return std::exp(bias_[rank] + 0.05 * now - 0.5 * setting_.expert_sigma * setting_.expert_sigma);
}

double Pace::Compute(uint32_t rank, double at_s, uint32_t iteration, Work work) {
  double factor =
      speed_[rank] * Thermal(job_.node_of(rank), at_s) * noise_.LogNormal(setting_.compute_sigma);
  for (const Fault& fault : faults_) factor *= SlowCompute(fault, rank, at_s);
  if (work == Work::kTokens && setting_.sequence_sigma > 0) {
    const uint64_t bits = Mix(Mix(job_.replica_of[rank], 5), iteration);
    factor *= 0.1 + 0.9 * std::exp(setting_.sequence_sigma * Noise::Normal(bits));
  } else if (work == Work::kExperts) {
    factor *= 0.1 + 0.9 * Tokens(rank, iteration);
  }
  if (!cron_.empty()) {
    const Interval* cron = At(cron_, at_s);
    if (cron != nullptr && cron->node == job_.node_of(rank)) factor *= cron->factor;
  }
  return factor;
}

double Pace::Host(uint32_t rank) {
  double factor = noise_.LogNormal(setting_.host_sigma);
  for (const Fault& fault : faults_) {
    if (rank == fault.rank && fault.kind == FaultKind::kSlowCpu) factor *= 1 + fault.magnitude;
  }
  return factor;
}

bool Pace::InWave(const Interval& wave, uint32_t from, uint32_t to) const {
  const uint64_t bits = Mix(Mix(job_.node_of(from), wave.seed), job_.node_of(to));
  return static_cast<double>(bits >> 11) * 0x1p-53 < setting_.wave_share;
}

double Pace::Connection(uint32_t from, uint32_t to, CollectiveKind collective, double at_s) const {
  double factor = 1;
  if (!waves_.empty()) {
    const Interval* wave = At(waves_, at_s);
    if (wave != nullptr && InWave(*wave, from, to)) factor = wave->factor;
  }
  for (const Fault& fault : faults_) {
    if (at_s < fault.onset_s || at_s >= fault.heals_s) continue;
    const bool nic = fault.kind == FaultKind::kSlowNic && (from == fault.rank || to == fault.rank);
    const bool link = fault.kind == FaultKind::kLossyLink && from == fault.rank && to == fault.peer;
    if (nic || link) factor *= fault.magnitude;
    // A network card that reads the GPU's memory over a slow bus sends slowly.
    const bool gathers = fault.kind == FaultKind::kPcie && collective == CollectiveKind::kAllGather;
    if (gathers && (from == fault.rank || to == fault.rank)) factor *= fault.magnitude;
  }
  return factor;
}

double Pace::Transfer(uint32_t channel, CollectiveKind collective, double at_s) {
  double worst = 1;
  for (size_t i = 0; slow_links_ && i < links_[channel].size(); ++i) {
    const Link& link = links_[channel][i];
    double factor = Connection(link.from, link.to, collective, at_s);
    // Losses come in bursts: most operations lose few packets, some lose many.
    for (const Fault& fault : faults_) {
      const bool lossy = fault.kind == FaultKind::kLossyLink && link.from == fault.rank &&
                         link.to == fault.peer && factor > 1;
      if (lossy) factor = 1 + (factor - 1) * noise_.Exponential(1);
    }
    worst = std::max(worst, factor);
  }
  for (const Fault& fault : faults_) {
    if (fault.kind != FaultKind::kPcie || collective != CollectiveKind::kAllGather) continue;
    // The bus is also slow for transfers inside the node.
    if (at_s < fault.onset_s || at_s >= fault.heals_s || job_.channels[channel].crosses_nodes) {
      continue;
    }
    const auto& members = job_.channels[channel].members;
    if (std::find(members.begin(), members.end(), fault.rank) != members.end()) {
      worst *= fault.magnitude;
    }
  }
  double factor = worst * noise_.LogNormal(setting_.transfer_sigma);
  if (noise_.Chance(setting_.congestion_chance)) factor *= noise_.Pareto(1.1, 1.5, 5);
  return factor;
}

double Pace::LinksUpAt(uint32_t channel, double at_s) const {
  if (flaps_.empty()) return at_s;
  const Interval* flap = At(flaps_, at_s);
  if (flap == nullptr) return at_s;
  for (const Link& link : links_[channel]) {
    if (job_.node_of(link.from) == flap->node || job_.node_of(link.to) == flap->node) {
      return flap->to_s;
    }
  }
  return at_s;
}

}  // namespace holdfast::sim::program
