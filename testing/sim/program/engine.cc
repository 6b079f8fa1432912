#include "testing/sim/program/engine.h"

namespace holdfast::sim::program {
namespace {

constexpr double kLaunchS = 8e-6;  // time of the CPU to enqueue an operation
constexpr double kStallMostS = 3;

Fault MainOf(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    if (IsHang(fault.kind)) return fault;
  }
  return faults.empty() ? Fault() : faults.front();
}

}  // namespace

Engine::Engine(const Job& job, const Setting& setting, const std::vector<Fault>& faults,
               uint64_t seed)
    : job_(job),
      setting_(setting),
      fault_(MainOf(faults)),
      noise_(seed),
      pace_(job, setting, faults, noise_),
      ranks_(job.world),
      locals_(job.world),
      places_(job.channels.size()),
      queued_(job.world) {
  std::vector<uint32_t> own(job.channels.size());
  for (uint32_t r = 0; r < job.world; ++r) {
    RankState& state = ranks_[r];
    state.cpu_s = state.step_began_s = noise_.Uniform(0, setting.start_s);
    state.streams.resize(job.streams);
    state.kernels.assign(setting.ahead, kNone);
    state.sequences.resize(job.comms_of[r].size());
    std::vector<uint32_t> seen;
    for (const Instruction& one : job.programs[r]) {
      state.labels.resize(std::max<size_t>(state.labels.size(), one.label + 1U), kNone);
      Local& local = locals_[r].emplace_back();
      if (one.kind != Instruction::Kind::kTransfer) continue;
      const Channel& channel = job.channels[one.channel];
      if (std::find(seen.begin(), seen.end(), one.channel) == seen.end()) {
        own[one.channel] = static_cast<uint32_t>(seen.size());
        seen.push_back(one.channel);
      }
      local.channel = own[one.channel];
      const auto place = [](const std::vector<uint32_t>& list, uint32_t value) {
        return static_cast<uint32_t>(std::find(list.begin(), list.end(), value) - list.begin());
      };
      local.comm = place(job.comms_of[r], channel.comm);
      local.member = place(channel.members, r);
    }
    state.ordinals.resize(seen.size());
  }
}

double Engine::StopsAt(uint32_t rank) const {
  switch (fault_.kind) {
    case FaultKind::kKilled:
    case FaultKind::kStopped:
      return rank == fault_.rank ? fault_.onset_s : kNever;
    case FaultKind::kNodeLost:
      return job_.node_of(rank) == job_.node_of(fault_.rank) ? fault_.onset_s : kNever;
    default:
      return kNever;
  }
}

double Engine::ResumesAt(uint32_t rank) const {
  return fault_.kind == FaultKind::kStopped && rank == fault_.rank ? fault_.heals_s : kNever;
}

bool Engine::Killed(uint32_t rank, double at_s) const {
  return fault_.kind == FaultKind::kKilled && rank == fault_.rank && at_s >= fault_.onset_s;
}

bool Engine::NodeLost(uint32_t node, double at_s) const {
  return fault_.kind == FaultKind::kNodeLost && node == job_.node_of(fault_.rank) &&
         at_s >= fault_.onset_s;
}

void Engine::Queue(uint32_t rank) {
  if (queued_[rank]) return;
  queued_[rank] = true;
  queue_.push_back(rank);
}

void Engine::RunUntil(double horizon_s) {
  horizon_s_ = horizon_s;
  const bool at_once = StopsAt(fault_.rank) < kNever || !IsHang(fault_.kind);
  if (at_once && fault_.kind != FaultKind::kNone && horizon_s >= fault_.onset_s) {
    RecordEffect(fault_.onset_s);
  }
  for (uint32_t rank = 0; rank < job_.world; ++rank) Queue(rank);
  while (!queue_.empty()) {
    const uint32_t rank = queue_.back();
    queue_.pop_back();
    queued_[rank] = false;
    Pump(rank);
  }
}

void Engine::Pump(uint32_t rank) {
  for (bool moved = true; moved;) {
    moved = AdvanceCpu(rank);
    for (RankState::Stream& stream : ranks_[rank].streams) {
      if (!stream.waiting.empty()) moved |= Resolve(rank, stream);
    }
  }
}

// ---- the CPU ------------------------------------------------------------------------------------

bool Engine::AdvanceCpu(uint32_t rank) {
  RankState& state = ranks_[rank];
  const Program& program = job_.programs[rank];
  const double stops_s = StopsAt(rank);
  bool moved = false;
  while (!state.stuck && state.cpu_s <= horizon_s_) {
    if (state.sync_on != kNone) {
      const double end_s = EndOf(state, state.sync_on);
      if (end_s == kNever) return moved;
      state.cpu_s = std::max(state.cpu_s, end_s);
      state.sync_on = kNone;
      moved = true;
      continue;
    }
    if (state.cpu_s >= stops_s && state.cpu_s < ResumesAt(rank)) {
      if (ResumesAt(rank) == kNever) {
        state.stuck = true;
        return moved;
      }
      state.cpu_s = ResumesAt(rank);
      continue;
    }
    if (state.pc == 0 && state.paused_for <= state.iteration) {
      state.paused_for = state.iteration + 1;
      moved |= RunPauses(rank);
      continue;
    }
    const Instruction& one = program[state.pc];
    const bool skipped = one.every > 1 && state.iteration % one.every != one.every - 1U;
    if (!skipped && !Execute(rank, one)) return moved;
    moved = true;
    if (++state.pc == program.size()) {
      state.pc = 0;
      ++state.iteration;
    }
  }
  return moved;
}

/// Executes one instruction of the CPU. Returns false if the CPU cannot continue yet.
bool Engine::Execute(uint32_t rank, const Instruction& one) {
  RankState& state = ranks_[rank];
  switch (one.kind) {
    case Instruction::Kind::kHost:
      state.cpu_s += one.seconds * setting_.step_s * pace_.Host(rank);
      return true;
    case Instruction::Kind::kLoad:
      Load(rank, one);
      return !state.stuck;
    case Instruction::Kind::kCompute: {
      if (setting_.ahead > 0) {
        uint64_t& oldest = state.kernels[state.kernel_count % setting_.ahead];
        const Op* op = Find(state, oldest);
        if (op != nullptr && op->start_s == kNever) return false;
        if (op != nullptr) state.cpu_s = std::max(state.cpu_s, op->start_s);
        oldest = state.base + state.ops.size();
        ++state.kernel_count;
      }
      Op& op = Enqueue(rank, {.kind = Op::Kind::kCompute, .work = one.work});
      op.seconds = one.seconds * setting_.step_s;
      return true;
    }
    case Instruction::Kind::kTransfer:
      EnqueueTransfer(rank, one);
      return true;
    case Instruction::Kind::kWait:
      Enqueue(rank, {.kind = Op::Kind::kMarker, .after = state.labels[one.label]});
      return true;
    case Instruction::Kind::kSync:
      state.sync_on = state.streams[0].last;
      return true;
    case Instruction::Kind::kStep:
      EndStep(rank);
      return true;
  }
  return true;
}

void Engine::HangCpu(uint32_t rank, char process_state) {
  ranks_[rank].stuck = true;
  ranks_[rank].stuck_state = process_state;
  RecordEffect(ranks_[rank].cpu_s);
}

void Engine::Load(uint32_t rank, const Instruction& one) {
  RankState& state = ranks_[rank];
  const bool hits = fault_.kind == FaultKind::kLoader && rank == fault_.rank &&
                    state.cpu_s >= fault_.onset_s && state.cpu_s < fault_.heals_s;
  if (!hits) {
    state.cpu_s += one.seconds * setting_.step_s * pace_.Host(rank);
  } else if (fault_.heals_s == kNever) {
    HangCpu(rank, 'S');
  } else {
    RecordEffect(state.cpu_s);
    state.cpu_s = fault_.heals_s;
  }
}

void Engine::EndStep(uint32_t rank) {
  RankState& state = ranks_[rank];
  state.steps.push_back({state.cpu_s, state.cpu_s - state.step_began_s, state.iteration});
  state.step_began_s = state.cpu_s;
  if (!setting_.job.sync_each_step && state.sync_on == kNone) {
    state.sync_on = state.step_before;
    state.step_before = state.streams[0].last;
  }
  if (noise_.Chance(std::min(0.5, setting_.step_s / setting_.collect_every_s))) {
    state.cpu_s += setting_.collect_s * noise_.LogNormal(0.6);
  }
}

/// Runs the pauses of a rank before an iteration. Returns whether there were any.
bool Engine::RunPauses(uint32_t rank) {
  RankState& state = ranks_[rank];
  bool any = false;
  if (fault_.kind == FaultKind::kNeverJoins && rank == fault_.rank) {
    state.phases.push_back({state.cpu_s, kNever, static_cast<uint8_t>(detect::Phase::kInit)});
    HangCpu(rank, 'S');
    return true;
  }
  for (const Pause& pause : setting_.pauses) {
    if (pause.rank != Pause::kAll && pause.rank != rank) continue;
    const bool due = pause.every_steps == 0
                         ? state.iteration == pause.first_step
                         : state.iteration >= pause.first_step &&
                               (state.iteration - pause.first_step) % pause.every_steps == 0;
    if (!due) continue;
    any = true;
    const double from_s = state.cpu_s;
    const bool storage =
        fault_.kind == FaultKind::kStorageMarked || fault_.kind == FaultKind::kStorageUnmarked;
    const bool hits = storage && pause.phase == detect::Phase::kCheckpoint && rank == fault_.rank &&
                      from_s >= fault_.onset_s;
    double to_s = from_s + pause.seconds * noise_.LogNormal(pause.spread);
    if (hits) to_s = kNever;
    state.paused = {from_s, to_s, static_cast<uint8_t>(pause.phase), pause.states};
    if (pause.marked) state.phases.push_back(state.paused);
    if (hits) {
      HangCpu(rank, 'D');
      return true;
    }
    state.cpu_s = to_s;
  }
  return any;
}

// ---- streams ------------------------------------------------------------------------------------

Op& Engine::Enqueue(uint32_t rank, Op op) {
  RankState& state = ranks_[rank];
  op.iteration = state.iteration;
  op.enqueue_s = state.cpu_s;
  state.cpu_s += kLaunchS;
  RankState::Stream& stream = state.streams[op.stream];
  stream.last = state.base + state.ops.size();
  stream.waiting.push_back(stream.last);
  return state.ops.push_back(op);
}

void Engine::EnqueueTransfer(uint32_t rank, const Instruction& one) {
  RankState& state = ranks_[rank];
  const Local& local = locals_[rank][state.pc];
  const Channel& channel = job_.channels[one.channel];
  Op op{.kind = Op::Kind::kTransfer,
        .work = one.work,
        .collective = one.collective,
        .stream = one.stream};
  op.channel = one.channel;
  op.after = state.streams[0].last;
  op.seconds = one.seconds * setting_.step_s;
  op.bytes = one.bytes;
  if (one.work == Work::kExperts) {
    op.bytes =
        static_cast<uint64_t>(static_cast<double>(one.bytes) * pace_.Tokens(rank, state.iteration));
  }
  op.sequence = state.sequences[local.comm][static_cast<size_t>(one.collective)]++;
  op.ordinal = state.ordinals[local.channel]++;
  op.member = local.member;
  const bool hits = fault_.kind == FaultKind::kMismatched && rank == fault_.rank &&
                    !operation_hit_ && state.cpu_s >= fault_.onset_s && !channel.pair &&
                    channel.members.size() > 1 && one.collective != CollectiveKind::kAllToAll;
  if (hits) {
    operation_hit_ = true;
    op.bytes += 4096;
    RecordEffect(state.cpu_s);
  }
  state.labels[one.label] = state.base + state.ops.size();
  Enqueue(rank, op);
}

/// Computes starts and ends of operations, from the head of a stream on. Returns whether any became
/// known.
bool Engine::Resolve(uint32_t rank, RankState::Stream& stream) {
  RankState& state = ranks_[rank];
  bool moved = false;
  while (!stream.waiting.empty()) {
    const uint64_t number = stream.waiting.front();
    Op& op = state.ops[number - state.base];
    if (op.start_s == kNever) {
      const double after_s = EndOf(state, op.after);
      if (after_s == kNever) break;
      const double start_s = std::max({op.enqueue_s, stream.free_s, after_s});
      // The GPU work of a process ends with the process.
      if (start_s >= StopsAt(rank) && fault_.kind != FaultKind::kStopped) break;
      op.start_s = start_s;
      moved = true;
      if (op.kind == Op::Kind::kMarker) {
        op.end_s = start_s;
      } else if (op.kind == Op::Kind::kCompute) {
        op.end_s = ComputeEnd(rank, op);
      } else {
        Join(rank, op, number);
      }
    }
    if (op.end_s == kNever) break;
    stream.free_s = op.end_s;
    stream.waiting.pop_front();
    moved = true;
  }
  return moved;
}

double Engine::ComputeEnd(uint32_t rank, const Op& op) {
  if (fault_.kind == FaultKind::kInfiniteKernel && rank == fault_.rank &&
      op.start_s >= fault_.onset_s) {
    RecordEffect(op.start_s);
    return kNever;
  }
  double seconds = op.seconds * pace_.Compute(rank, op.start_s, op.iteration, op.work);
  if (noise_.Chance(setting_.stall_chance)) {
    seconds += noise_.Pareto(setting_.stall_s, 1.2, kStallMostS);
  }
  return op.start_s + seconds;
}

// ---- channels -----------------------------------------------------------------------------------

void Engine::Join(uint32_t rank, const Op& op, uint64_t number) {
  Place& place = places_[op.channel];
  const size_t index = op.ordinal - place.first;
  while (place.rendezvous_queue.size() <= index) {
    Rendezvous& rendezvous = place.rendezvous_queue.emplace_back();
    rendezvous.ops.assign(job_.channels[op.channel].members.size(), kNone);
  }
  Rendezvous& rendezvous = place.rendezvous_queue[index];
  if (rendezvous.arrived == 0) {
    rendezvous.bytes = op.bytes;
    rendezvous.collective = op.collective;
  } else if (op.work != Work::kExperts && rendezvous.bytes != op.bytes) {
    rendezvous.broken = true;
  }
  ++rendezvous.arrived;
  rendezvous.ops[op.member] = number;
  rendezvous.last_s = std::max(rendezvous.last_s, op.start_s);
  rendezvous.seconds = op.seconds;
  if (op.work == Work::kExperts) {
    rendezvous.tokens = std::max(rendezvous.tokens, pace_.Tokens(rank, op.iteration));
  }
  if (rendezvous.arrived < rendezvous.ops.size() || rendezvous.broken) return;
  Complete(op.channel, rendezvous);
  while (!place.rendezvous_queue.empty() && place.rendezvous_queue.front().over) {
    place.rendezvous_queue.pop_front();
    ++place.first;
  }
}

void Engine::Complete(uint32_t channel, Rendezvous& rendezvous) {
  const double end_s = EndOf(channel, rendezvous);
  if (end_s == kNever) return;
  rendezvous.over = true;
  const std::vector<uint32_t>& members = job_.channels[channel].members;
  for (size_t i = 0; i < members.size(); ++i) {
    RankState& state = ranks_[members[i]];
    // Ranks leave within microseconds of each other.
    const double left_s = static_cast<double>(noise_.random().Next() & 0xffU) * 1e-7;
    state.ops[rendezvous.ops[i] - state.base].end_s = end_s + left_s;
    Queue(members[i]);
  }
  if (!wanted_.empty()) Measure(channel, rendezvous, end_s);
}

bool Engine::HasLink(uint32_t channel) const {
  const auto& links = pace_.links(channel);
  return std::any_of(links.begin(), links.end(), [&](const Pace::Link& link) {
    return link.from == fault_.rank && link.to == fault_.peer;
  });
}

/// Returns when an operation ends that all participants have joined; kNever if it hangs.
double Engine::EndOf(uint32_t channel, const Rendezvous& rendezvous) {
  double length_s =
      rendezvous.seconds * pace_.Transfer(channel, rendezvous.collective, rendezvous.last_s);
  if (rendezvous.tokens > 0) length_s *= 0.1 + 0.9 * rendezvous.tokens;
  double end_s = pace_.LinksUpAt(channel, rendezvous.last_s) + length_s;
  if (end_s < fault_.onset_s || fault_.kind == FaultKind::kNone) return end_s;
  const std::vector<uint32_t>& members = job_.channels[channel].members;
  switch (fault_.kind) {
    case FaultKind::kDroppedLink:
      if (!HasLink(channel)) return end_s;
      RecordEffect(std::max(fault_.onset_s, rendezvous.last_s));
      return kNever;
    case FaultKind::kHungCollective:
      if (channel != fault_.channel || operation_hit_ || rendezvous.last_s < fault_.onset_s) {
        return end_s;
      }
      operation_hit_ = true;
      RecordEffect(rendezvous.last_s);
      return kNever;
    case FaultKind::kKilled:
    case FaultKind::kNodeLost:
    case FaultKind::kStopped: {
      // A stopped process moves no data between nodes. Inside a node, its GPU does.
      if (fault_.kind == FaultKind::kStopped && !job_.channels[channel].crosses_nodes) {
        return end_s;
      }
      for (const uint32_t member : members) {
        if (end_s < StopsAt(member) || rendezvous.last_s >= ResumesAt(member)) continue;
        if (ResumesAt(member) == kNever) return kNever;
        end_s = ResumesAt(member) + std::min(length_s, end_s - fault_.onset_s);
      }
      return end_s;
    }
    default:
      return end_s;
  }
}

/// Measures the waits on each connection of a channel.
void Engine::Measure(uint32_t channel, const Rendezvous& rendezvous, double end_s) {
  constexpr double kWaitNsPerByte = 0.04;
  const Channel& where = job_.channels[channel];
  const CommunicatorId id = job_.comms[where.comm].id;
  if (std::find(wanted_.begin(), wanted_.end(), id) == wanted_.end()) return;
  const auto& links = pace_.links(channel);
  const uint64_t bytes =
      rendezvous.bytes / std::max<size_t>(1, links.size() / where.members.size());
  for (const Pace::Link& link : links) {
    double wait_ns = kWaitNsPerByte * static_cast<double>(bytes) * noise_.LogNormal(0.06);
    if (noise_.Chance(0.02)) wait_ns *= noise_.Pareto(1.1, 2, 4);
    wait_ns *= pace_.Connection(link.from, link.to, rendezvous.collective, rendezvous.last_s);
    const PeerTransfers sums{.communicator = id,
                             .direction = Direction::kSend,
                             .transfers = 1,
                             .bytes = bytes,
                             .transfer_ns = static_cast<uint64_t>(wait_ns)};
    peer_waits_.push_back({end_s, {Rank{link.from}, Rank{link.to}, sums}});
  }
}

std::optional<detect::PeerEdge> Engine::EdgeOf(uint32_t rank, const Op& op) const {
  const Channel& channel = job_.channels[op.channel];
  const Place& place = places_[op.channel];
  if (!channel.crosses_nodes || op.ordinal < place.first ||
      op.ordinal - place.first >= place.rendezvous_queue.size()) {
    return std::nullopt;
  }
  const Rendezvous& rendezvous = place.rendezvous_queue[op.ordinal - place.first];
  const auto n = static_cast<uint32_t>(channel.members.size());
  const auto absent = [&](uint32_t member) {
    return rendezvous.ops[member] == kNone || StopsAt(channel.members[member]) <= horizon_s_;
  };
  if (channel.pair) {
    const bool sends = op.member == 0;
    const EdgeState state = !sends                  ? EdgeState::kReceiveWait
                            : absent(1 - op.member) ? EdgeState::kSendPeerWait
                                                    : EdgeState::kSendWait;
    return detect::PeerEdge{Rank{channel.members[1 - op.member]},
                            sends ? Direction::kSend : Direction::kReceive, state, op.ordinal % 29};
  }
  bool missing = rendezvous.arrived < n;
  if (StopsAt(fault_.rank) <= horizon_s_) {
    for (uint32_t i = 0; i < n && !missing; ++i) missing = absent(i);
  }
  // The ring that is blocked, its position at which nothing moves, and the transfers up to there.
  const auto position = [&](uint32_t of) {
    const auto found = std::find(channel.members.begin(), channel.members.end(), of);
    return static_cast<uint32_t>(found - channel.members.begin());
  };
  uint32_t stride = 1;
  uint32_t blocked = op.ordinal % n;  // of a transfer that continues: any
  const uint64_t reached = missing ? 0 : op.ordinal % 29;
  if (missing) {
    blocked = op.member;
    while (!absent(blocked)) blocked = (blocked + n - 1) % n;
  } else if (HasLink(op.channel)) {
    blocked = position(fault_.rank);
    stride = (position(fault_.peer) + n - blocked) % n;
  }
  uint32_t behind = 0;
  while (behind < n && (blocked + behind * stride) % n != op.member) ++behind;
  if (behind == n) return std::nullopt;  // not in that ring
  return RingEdge({.rank = rank,
                   .next = channel.members[(op.member + stride) % n],
                   .previous = channel.members[(op.member + n - stride) % n],
                   .behind = behind,
                   .size = n,
                   .reached = reached,
                   .missing = missing});
}

/// Returns the least advanced connection of a rank of a ring. A rank sends on what it has received,
/// so every position has one transfer more. As in reality, connections within a node are unknown.
std::optional<detect::PeerEdge> Engine::RingEdge(const RingPlace& place) const {
  const bool sends = job_.node_of(place.next) != job_.node_of(place.rank);
  const bool receives = job_.node_of(place.previous) != job_.node_of(place.rank);
  const bool blocked = place.behind == 0;  // what it sends is not acknowledged
  const bool full = place.missing && place.behind == place.size - 1;  // the next rank takes no data
  const detect::PeerEdge send{Rank{place.next}, Direction::kSend,
                              full      ? EdgeState::kSendPeerWait
                              : blocked ? EdgeState::kSendWait
                                        : EdgeState::kSendGpuWait,
                              full ? 0 : place.reached + place.behind};
  const uint32_t received = blocked ? place.size - 1 : place.behind - 1;
  const detect::PeerEdge receive{Rank{place.previous}, Direction::kReceive, EdgeState::kReceiveWait,
                                 place.reached + received};
  if (!sends && !receives) return std::nullopt;
  if (!sends) return receive;
  if (!receives) return send;
  return *send.completed <= *receive.completed ? send : receive;
}

}  // namespace holdfast::sim::program
