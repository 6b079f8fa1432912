#include <algorithm>
#include <cmath>

#include "testing/sim/trace.h"

// The collectives and pipeline transfers of a simulated job.

namespace holdfast::sim {

using detect::RankFlight;

namespace {

constexpr double kWaitNsPerByte = 0.08;  // in kSendWait

}  // namespace

bool Trace::HotEdge(uint32_t from, uint32_t to) const {
  if (!active_) return false;
  switch (truth_.kind) {
    case FaultKind::kSlowEdge:
    case FaultKind::kLatency:
      return from == truth_.ranks.front() && to == truth_.peer;
    case FaultKind::kSlowSend:
      return from == truth_.ranks.front();
    case FaultKind::kSlowReceive:
      return to == truth_.ranks.front();
    default:
      return false;
  }
}

/// Returns the factor by which the group's slowest connection prolongs a transfer.
double Trace::LinkFactor(const Part& part, uint32_t group) const {
  const Family& family = job_.families[part.family];
  const bool link = truth_.kind == FaultKind::kSlowEdge || truth_.kind == FaultKind::kSlowSend ||
                    truth_.kind == FaultKind::kSlowReceive || truth_.kind == FaultKind::kLatency;
  if (!active_ || !link || !family.crosses_nodes) return 1;
  return family.group_of[truth_.ranks.front()] == group ? link_slowdown_ : 1;
}

CollectiveRecord Trace::RecordOf(const Part& part, uint32_t group, uint64_t sequence) const {
  return {.communicator = IdOf(part.family, group),
          .sequence = sequence,
          .bytes = part.bytes,
          .kind = part.collective,
          .dtype = 7};
}

void Trace::HangRank(uint32_t rank, const RankFlight& flight, double at_s) {
  RankState& state = ranks_[rank];
  state.stuck = true;
  RankFlight entry = flight;
  entry.rank = Rank{rank};
  entry.started = true;
  nodes_[rank / job_.ranks_per_node].long_operations.push_back({entry, at_s, 1e18});
  state.t = at_s;
  last_moved_s_ = std::max(last_moved_s_, at_s);
}

void Trace::Transferred(uint32_t rank, CollectiveRecord& record, double from_s, double to_s) {
  RankState& state = ranks_[rank];
  Node& node = nodes_[rank / job_.ranks_per_node];
  record.started_ns = LocalNs(node, from_s);
  record.ended_ns = LocalNs(node, to_s);
  record.enqueued_ns = record.started_ns;
  record.blocked_ns = static_cast<uint64_t>(state.blocked_s * node.rate * 1e9) + 1;
  record.moved_bytes = static_cast<uint64_t>(state.moved) + 1;
  node.done.push_back({Rank{rank}, record});
  node.done_at_s.push_back(to_s);
  if (to_s - from_s > kReportedAgeS) {
    RankFlight flight{.rank = Rank{rank}, .record = record, .started = true};
    flight.record.ended_ns = 0;
    node.long_operations.push_back({flight, from_s, to_s});
  }
  state.blocked_s += to_s - from_s;
  state.moved += static_cast<double>(record.bytes);
  state.t = to_s;
  LeftAt(iteration_, place_, rank) = to_s;
}

void Trace::Collective(const Part& part) {
  uint64_t& seq = seq_[part.family][static_cast<size_t>(part.collective)];
  const auto groups = static_cast<uint32_t>(job_.families[part.family].groups.size());
  for (uint32_t group = 0; group < groups; ++group) CollectiveOf(part, group, seq);
  ++seq;
}

/// A member will not join: the others stay in the operation.
void Trace::Block(const Part& part, uint32_t group, uint64_t seq) {
  RankFlight flight{.rank = {}, .record = RecordOf(part, group, seq)};
  for (uint32_t rank : job_.families[part.family].groups[group]) {
    if (!ranks_[rank].stuck) HangRank(rank, flight, ranks_[rank].t);
  }
}

void Trace::Mismatch(const Part& part, uint32_t group, uint64_t seq) {
  Block(part, group, seq);
  const uint32_t rank = truth_.ranks.front();
  for (auto& operation : nodes_[rank / job_.ranks_per_node].long_operations) {
    if (operation.flight.rank.value == rank) operation.flight.record.bytes += 4096;
  }
  truth_.onset_s = ranks_[rank].t;
}

/// All members join, and a connection loses all data. The other connections run out of data one
/// after another.
void Trace::DropEdge(const Part& part, uint32_t group, uint64_t seq) {
  const auto& members = job_.families[part.family].groups[group];
  const auto n = static_cast<uint32_t>(members.size());
  const uint32_t from = truth_.ranks.front();
  double last = 0;
  const auto at =
      static_cast<uint32_t>(std::find(members.begin(), members.end(), from) - members.begin());
  const auto to = static_cast<uint32_t>(std::find(members.begin(), members.end(), truth_.peer) -
                                        members.begin());
  const uint32_t stride = (to + n - at) % n;  // the ring of the channel that holds the edge
  const uint64_t stopped_at = noise_.random().Below(32);
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t rank = members[i];
    const uint32_t next = members[(i + stride) % n];
    const uint32_t previous = members[(i + n - stride) % n];
    RankFlight flight{.rank = {}, .record = RecordOf(part, group, seq)};
    detect::PeerEdge edge;
    if (rank == from) {
      edge = {Rank{truth_.peer}, Direction::kSend, EdgeState::kSendWait, stopped_at};
    } else if (rank == truth_.peer) {
      edge = {Rank{from}, Direction::kReceive, EdgeState::kReceiveWait, stopped_at};
    } else if (noise_.Chance(0.5)) {
      edge = {Rank{previous}, Direction::kReceive, EdgeState::kReceiveWait,
              stopped_at + 1 + noise_.random().Below(4)};
    } else {
      edge = {Rank{next}, Direction::kSend, EdgeState::kSendPeerWait,
              stopped_at + 1 + noise_.random().Below(4)};
    }
    flight.edge = edge;
    last = std::max(last, ranks_[rank].t);
    HangRank(rank, flight, ranks_[rank].t);
  }
  truth_.onset_s = last;
}

void Trace::TransfersOf(const Part& part, uint32_t group, double transfer_s) {
  const Family& family = job_.families[part.family];
  const CommunicatorId id = IdOf(part.family, group);
  if (!family.crosses_nodes || std::find(wanted_.begin(), wanted_.end(), id) == wanted_.end()) {
    return;
  }
  const auto& members = family.groups[group];
  for (uint32_t i = 0; i < members.size(); ++i) {
    const auto neighbours = Neighbours(i, static_cast<uint32_t>(members.size()));
    const uint64_t bytes = part.bytes / neighbours.size();
    for (uint32_t to : neighbours) {
      double wait_ns = kWaitNsPerByte * static_cast<double>(bytes) * noise_.LogNormal(0.06);
      if (noise_.Chance(0.02)) wait_ns *= noise_.Pareto(1.1, 2, 4);
      if (HotEdge(members[i], members[to])) wait_ns *= link_slowdown_;
      PeerTransfers sent{.communicator = id,
                         .direction = Direction::kSend,
                         .transfers = 1,
                         .bytes = bytes,
                         .transfer_ns = static_cast<uint64_t>(wait_ns)};
      nodes_[members[i] / job_.ranks_per_node].sums.push_back(
          {Rank{members[i]}, Rank{members[to]}, sent});
      // The receiver waits for the complete operation, as all ranks behind a slow connection do.
      PeerTransfers received{.communicator = id,
                             .direction = Direction::kReceive,
                             .transfers = 1,
                             .bytes = bytes,
                             .peer_wait_ns = static_cast<uint64_t>(transfer_s * 1e9)};
      nodes_[members[to] / job_.ranks_per_node].sums.push_back(
          {Rank{members[to]}, Rank{members[i]}, received});
    }
  }
}

void Trace::CollectiveOf(const Part& part, uint32_t group, uint64_t seq) {
  const auto& members = job_.families[part.family].groups[group];
  double last = 0;
  double most_tokens = 0;
  bool absent = false;
  bool has_faulty = false;
  for (uint32_t rank : members) {
    const RankState& state = ranks_[rank];
    absent |= state.stuck;
    has_faulty |= rank == truth_.ranks.front();
    last = std::max(last, state.t);
    most_tokens = std::max(most_tokens, state.tokens);
  }
  const bool injects = has_faulty && iteration_ == truth_.onset_iteration &&
                       &part == &job_.parts[fault_part_] && !absent && !injected_;
  if (injects && truth_.kind == FaultKind::kMismatched) {
    injected_ = true;
    Mismatch(part, group, seq);
    return;
  }
  if (injects && truth_.kind == FaultKind::kDroppedEdge) {
    injected_ = true;
    DropEdge(part, group, seq);
    return;
  }
  if (injects && truth_.kind == FaultKind::kSkipped) {
    injected_ = true;
    const uint32_t skipper = truth_.ranks.front();
    truth_.onset_s = ranks_[skipper].t;
    ranks_[skipper].stuck = true;  // for Block(); the rank continues afterwards
    Block(part, group, seq);
    ranks_[skipper].stuck = false;
    return;
  }
  if (absent) {
    const bool behind = truth_.kind == FaultKind::kSkipped && has_faulty && injected_ &&
                        part.family == job_.parts[fault_part_].family &&
                        part.collective == job_.parts[fault_part_].collective;
    Block(part, group, behind ? seq - 1 : seq);
    return;
  }
  const double tokens = part.by_tokens ? most_tokens : 1;
  double transfer_s = part.share * nominal_s_ * tokens * LinkFactor(part, group) *
                      noise_.LogNormal(conditions_.transfer_sigma);
  if (noise_.Chance(conditions_.congestion_chance)) transfer_s *= noise_.Pareto(1.1, 1.5, 5);
  TransfersOf(part, group, transfer_s);
  CollectiveRecord record = RecordOf(part, group, seq);
  for (uint32_t rank : members) {
    RankState& state = ranks_[rank];
    record.bytes = part.by_tokens
                       ? static_cast<uint64_t>(static_cast<double>(part.bytes) * state.tokens)
                       : part.bytes;
    // Ranks leave within microseconds of each other.
    const double left = static_cast<double>(noise_.random().Next() & 0xffU) * 2e-7;
    Transferred(rank, record, state.t, last + transfer_s + left);
  }
}

void Trace::Pipeline(const Part& part) {
  // Forward passes go from the first stage to the last, backward passes the other way. A stage
  // waits for each microbatch of the previous stage, and hangs in its receive if that stage is
  // stuck.
  const uint32_t replicas = job_.world / job_.stages;
  const uint32_t count = job_.microbatches;
  const double slot_s = part.share * nominal_s_ / (2.0 * (count + job_.stages - 1));
  const double move_s = slot_s * 0.02;
  std::vector<double> ends(count);  // of the previous stage, by microbatch; 1e18: never
  for (uint32_t replica = 0; replica < replicas; ++replica) {
    const auto waiting = [&](uint32_t rank, uint32_t from, uint64_t microbatch) {
      return RankFlight{
          .rank = Rank{rank},
          .record = {.communicator = IdOf(static_cast<uint32_t>(job_.families.size()), replica),
                     .bytes = 1U << 20U,
                     .kind = CollectiveKind::kReceive,
                     .dtype = 7},
          .started = true,
          .edge = detect::PeerEdge{Rank{from}, Direction::kReceive, EdgeState::kReceiveWait,
                                   microbatch}};
    };
    for (const bool backward : {false, true}) {
      std::fill(ends.begin(), ends.end(), 0);
      for (uint32_t i = 0; i < job_.stages; ++i) {
        const uint32_t stage = backward ? job_.stages - 1 - i : i;
        const uint32_t rank = stage * replicas + replica;
        RankState& state = ranks_[rank];
        const double load = job_.stage_load[stage] * state.tokens * (backward ? 1.3 : 0.7);
        for (uint32_t m = 0; m < count; ++m) {
          if (state.stuck) {
            ends[m] = 1e18;
            continue;
          }
          const double ready = ends[m] + move_s;
          if (ends[m] > 1e17) {
            const uint32_t from = backward ? rank + replicas : rank - replicas;
            HangRank(rank, waiting(rank, from, m), state.t);
            ends[m] = 1e18;
            continue;
          }
          if (i > 0 && ready > state.t) {
            const uint32_t from = backward ? rank + replicas : rank - replicas;
            if (ready - state.t > kReportedAgeS) {
              nodes_[rank / job_.ranks_per_node].long_operations.push_back(
                  {waiting(rank, from, m), state.t, ready});
            }
            state.blocked_s += ready - state.t;
            state.t = ready;
          }
          ComputeRank(rank, slot_s * load);
          ends[m] = state.t;
        }
      }
    }
  }
}

}  // namespace holdfast::sim
