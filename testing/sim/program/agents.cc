#include "testing/sim/program/agents.h"

#include <fmt/format.h>

namespace holdfast::sim::program {
namespace {

constexpr double kCommunicatorsEveryS = 5;
constexpr uint32_t kDeadReports = 50;
constexpr double kStuckS = 2;       // age of a stuck operation from which agents probe each other
constexpr uint32_t kProbedMax = 3;  // other nodes, concurrently
constexpr size_t kKept = 4096;      // entries of a rank's ring

}  // namespace

Agents::Agents(Engine& engine, FlightRule rule, uint64_t seed)
    : engine_(engine),
      setting_(engine.setting()),
      rule_(rule),
      noise_(seed),
      step_noise_(seed + 1),
      nodes_(engine.job().nodes()) {
  for (Node& node : nodes_) {
    node.offset_s = noise_.Uniform(-setting_.clock_offset_s, setting_.clock_offset_s);
    node.rate = 1 + 1e-6 * noise_.Uniform(-setting_.clock_drift_ppm, setting_.clock_drift_ppm);
    node.next_sample_s = noise_.Uniform(0, setting_.sample_period_s);
    if (setting_.restart_every_s > 0) {
      node.restart_s = noise_.Exponential(setting_.restart_every_s);
    }
    if (setting_.outage_every_s > 0) node.outage_s = noise_.Exponential(setting_.outage_every_s);
    node.dead_reports.resize(engine.job().ranks_per_node);
  }
  for (uint32_t rank = 0; rank < engine.job().world; ++rank) {
    recorders_.emplace_back(engine, rank);
  }
}

/// A rank notes the end of its step a little later.
double Agents::SinceStep(double since_s) {
  return std::max(0.0, since_s - setting_.stamp_jitter_s * step_noise_.random().Unit());
}

uint64_t Agents::Stamp(const Node& node, double at_s) {
  return LocalNs(node, at_s + setting_.stamp_jitter_s * noise_.random().Unit());
}

void Agents::SampleUntil(double until_s) {
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    for (; node.next_sample_s <= until_s; node.next_sample_s += setting_.sample_period_s) {
      if (!engine_.NodeLost(i, node.next_sample_s)) Sample(i, node.next_sample_s);
    }
  }
  engine_.peer_waits().clear();
}

char Agents::StateOf(uint32_t rank, double at_s) const {
  if (engine_.Killed(rank, at_s)) return 'X';
  if (at_s >= engine_.StopsAt(rank) && at_s < engine_.ResumesAt(rank)) return 'T';
  const auto& state = engine_.rank(rank);
  if (state.stuck && at_s >= state.cpu_s) return state.stuck_state;
  const PhaseMark& paused = state.paused;
  if (at_s < paused.from_s || at_s >= paused.to_s) return 'R';
  return paused.states[static_cast<size_t>(at_s) % paused.states.size()];
}

void Agents::ReportRank(uint32_t index, uint32_t rank, double at_s, detect::Digest& digest) {
  Node& node = nodes_[index];
  const bool alive = !engine_.Killed(rank, at_s);
  uint32_t& reports = node.dead_reports[rank % engine_.job().ranks_per_node];
  if (!alive && reports++ >= kDeadReports) return;
  recorders_[rank].Read(at_s, snapshot_);
  detect::RankState& report = digest.ranks.emplace_back();
  report.rank = Rank{rank};
  report.alive = alive;
  report.process_state = StateOf(rank, at_s);
  report.phases = snapshot_.phases;
  report.silent_ns = static_cast<uint64_t>(std::max(0.0, snapshot_.silent_s) * 1e9);
  if (setting_.reports_steps) {
    report.step = snapshot_.step;
    report.since_step_ns = static_cast<uint64_t>(SinceStep(snapshot_.since_step_s) * 1e9);
    report.steps = std::move(snapshot_.steps);
  }
  for (const Recorder::Ended& ended : snapshot_.ended) {
    CollectiveRecord& record =
        digest.ended.emplace_back(detect::RankRecord{Rank{rank}, ended.record}).record;
    record.started_ns = Stamp(node, ended.start_s);
    record.ended_ns = std::max(record.started_ns + 1, Stamp(node, ended.stop_s));
    record.enqueued_ns = std::min(record.started_ns, LocalNs(node, ended.enqueue_s));
    record.blocked_ns = static_cast<uint64_t>(static_cast<double>(record.blocked_ns) * node.rate);
  }
  for (detect::RankFlight& flight : ReportedFlights(std::move(snapshot_.flights), rule_)) {
    digest.in_flight.push_back(flight);
  }
  digest.completed.insert(digest.completed.end(), snapshot_.completed.begin(),
                          snapshot_.completed.end());
}

/// Loses, repeats and swaps single records, as a full table, a ring that is overwritten, a repeated
/// message and threads that write at the same time do. Counts of completed operations are read from
/// the current table, so only their record of this digest is lost.
void Agents::DisturbRecords(detect::Digest& digest) {
  const auto lose = [&](auto& records, double share) {
    std::erase_if(records, [&](const auto&) { return noise_.Chance(share); });
  };
  lose(digest.ended, setting_.record_loss);
  lose(digest.in_flight, setting_.record_loss);
  lose(digest.completed, setting_.record_loss);
  lose(digest.peers, setting_.record_loss);
  for (detect::RankState& state : digest.ranks) lose(state.steps, setting_.record_loss);
  for (size_t i = digest.ended.size(); i-- > 0;) {
    if (noise_.Chance(setting_.record_repeat)) digest.ended.push_back(digest.ended[i]);
    if (i > 0 && noise_.Chance(setting_.record_swap)) {
      std::swap(digest.ended[i], digest.ended[i - 1]);
    }
  }
}

/// Agents whose ranks are stuck probe a few other nodes.
void Agents::ReportProbes(uint32_t index, double at_s, detect::Digest& digest) const {
  const bool stuck = std::any_of(
      digest.in_flight.begin(), digest.in_flight.end(), [](const detect::RankFlight& flight) {
        return flight.started && static_cast<double>(flight.age_ns) > (kStuckS + 1) * 1e9;
      });
  if (!stuck) return;
  const Job& job = engine_.job();
  const Fault& fault = engine_.fault();
  const auto nodes = static_cast<uint32_t>(nodes_.size());
  for (uint32_t i = 1; i <= std::min(kProbedMax, nodes - 1); ++i) {
    const uint32_t other = (index + i) % nodes;
    bool reached = !engine_.NodeLost(other, at_s);
    if (fault.kind == FaultKind::kDroppedLink && at_s >= engine_.effect_s()) {
      const uint32_t a = job.node_of(fault.rank);
      const uint32_t b = job.node_of(fault.peer);
      if ((index == a && other == b) || (index == b && other == a)) reached = false;
    }
    digest.reach.push_back({fmt::format("n{}", other), reached});
  }
}

/// A restarted agent numbers its digests again and reads each rank's ring from its beginning.
void Agents::Restart(uint32_t index, double at_s, detect::Digest& digest) {
  Node& node = nodes_[index];
  node.restart_s = at_s + noise_.Exponential(setting_.restart_every_s);
  ++node.agent_start;
  node.number = 0;
  node.samples = 0;
  digest.ended = node.kept;
}

void Agents::Sample(uint32_t index, double at_s) {
  Node& node = nodes_[index];
  const Job& job = engine_.job();
  detect::Digest digest;
  digest.node = fmt::format("n{}", index);
  digest.incarnation = kIncarnation;
  digest.world = job.world;
  if (at_s >= node.restart_s) Restart(index, at_s, digest);
  digest.agent_start = node.agent_start;
  digest.number = node.number++;
  digest.taken_ns = LocalNs(node, at_s);
  const uint32_t first = index * job.ranks_per_node;
  const uint32_t end = std::min(first + job.ranks_per_node, job.world);
  const auto every =
      std::max<uint64_t>(1, static_cast<uint64_t>(kCommunicatorsEveryS / setting_.sample_period_s));
  if (node.samples++ % every == 0) {
    std::vector<uint32_t> added;
    for (uint32_t rank = first; rank < end; ++rank) {
      for (const uint32_t comm : job.comms_of[rank]) {
        if (!job.comms[comm].recorded ||
            std::find(added.begin(), added.end(), comm) != added.end()) {
          continue;
        }
        added.push_back(comm);
        Communicator& one = digest.communicators.emplace_back();
        one.id = job.comms[comm].id;
        one.role = setting_.reports_roles ? job.comms[comm].role : CommunicatorRole::kUnknown;
        for (const uint32_t member : job.comms[comm].members) one.members.push_back(Rank{member});
      }
    }
  }
  for (uint32_t rank = first; rank < end; ++rank) ReportRank(index, rank, at_s, digest);
  if (setting_.restart_every_s > 0) {
    node.kept.insert(node.kept.end(), digest.ended.begin(), digest.ended.end());
    const size_t most = kKept * job.ranks_per_node;
    if (node.kept.size() > most) {
      node.kept.erase(node.kept.begin(), node.kept.end() - static_cast<ptrdiff_t>(most));
    }
  }
  for (const PeerWait& wait : engine_.peer_waits()) {
    if (job.node_of(wait.transfers.rank.value) == index) digest.peers.push_back(wait.transfers);
  }
  std::erase_if(engine_.peer_waits(), [&](const PeerWait& wait) {
    return job.node_of(wait.transfers.rank.value) == index;
  });
  DisturbRecords(digest);
  ReportProbes(index, at_s, digest);
  if (setting_.restarted && at_s < 15) {
    detect::Digest stale = digest;
    stale.incarnation = Incarnation{kIncarnation.value - 1};
    Push(at_s + noise_.Uniform(0.1, 10), std::move(stale));
  }
  Send(node, at_s, std::move(digest));
}

void Agents::Send(Node& node, double at_s, detect::Digest digest) {
  if (at_s >= node.outage_s) {
    node.outage_end_s = at_s + noise_.Uniform(5, 30);
    node.outage_loses = noise_.Chance(0.5);
    node.outage_s = node.outage_end_s + noise_.Exponential(setting_.outage_every_s);
  }
  const bool outage = at_s < node.outage_end_s;
  if (noise_.Chance(setting_.loss) || (outage && node.outage_loses)) return;
  double delay_s = 0.002 + noise_.Exponential(0.01);
  if (outage) delay_s += node.outage_end_s - at_s;
  if (noise_.Chance(setting_.late_chance)) delay_s += noise_.Uniform(0.2, setting_.late_s);
  Push(at_s + delay_s, std::move(digest));
}

void Agents::Push(double at_s, detect::Digest digest) {
  queue_.push_back({at_s, std::make_unique<detect::Digest>(std::move(digest))});
  std::push_heap(queue_.begin(), queue_.end(), Later());
}

std::optional<Agents::Delivery> Agents::Next(double until_s) {
  if (queue_.empty() || queue_.front().at_s > until_s) return std::nullopt;
  std::pop_heap(queue_.begin(), queue_.end(), Later());
  Delivery delivery = std::move(queue_.back());
  queue_.pop_back();
  return delivery;
}

}  // namespace holdfast::sim::program
