#include "testing/sim/program/recorder.h"

namespace holdfast::sim::program {

Recorder::Recorder(Engine& engine, uint32_t rank)
    : engine_(engine), rank_(rank), begun_(engine.job().comms_of[rank].size()) {}

void Recorder::Read(double at_s, Snapshot& snapshot) {
  snapshot = {};
  // A stopped process writes nothing.
  double view_s = at_s;
  if (at_s >= engine_.StopsAt(rank_) && at_s < engine_.ResumesAt(rank_)) {
    view_s = engine_.StopsAt(rank_);
  }
  Replay(view_s, snapshot);
  ReadFlights(at_s, view_s, snapshot);
  ReadSteps(at_s, view_s, snapshot);
  snapshot.silent_s = at_s - last_write_s_;
  read_until_s_ = std::max(read_until_s_, view_s);
}

uint16_t Recorder::TakeSlot() {
  const auto free = std::find(slots_.begin(), slots_.end(), false);
  const auto slot = static_cast<uint16_t>(free - slots_.begin());
  if (free == slots_.end()) slots_.push_back(true);
  slots_[slot] = true;
  return slot;
}

/// Replays starts and ends since the previous snapshot in their order, so that each record gets the
/// totals of its start.
void Recorder::Replay(double until_s, Snapshot& snapshot) {
  auto& state = engine_.rank(rank_);
  events_.clear();
  for (Op& op : state.ops) {
    if (op.enqueue_s > until_s) break;
    if (op.kind != Op::Kind::kTransfer || !engine_.job().comms[CommOf(op)].recorded) continue;
    if (op.start_s > read_until_s_ && op.start_s <= until_s) {
      events_.push_back({op.start_s, true, &op});
    }
    if (!op.over && op.end_s <= until_s) events_.push_back({op.end_s, false, &op});
  }
  std::sort(events_.begin(), events_.end(),
            [](const Event& a, const Event& b) { return a.at_s < b.at_s; });
  for (const Event& event : events_) {
    last_write_s_ = std::max(last_write_s_, event.at_s);
    Op& op = *event.op;
    if (event.starts) {
      double blocked_s = blocked_s_;
      if (running_++ == 0) {
        running_since_s_ = event.at_s;
      } else {
        blocked_s += event.at_s - running_since_s_;
      }
      op.blocked_ns = static_cast<uint64_t>(blocked_s * 1e9);
      op.moved_bytes = moved_bytes_;
      moved_bytes_ += op.bytes;
      continue;
    }
    op.over = true;
    if (--running_ == 0) blocked_s_ += event.at_s - running_since_s_;
    if (op.seen) slots_[op.slot] = false;
    Ended& ended = snapshot.ended.emplace_back();
    ended.record = {.communicator = engine_.job().comms[CommOf(op)].id,
                    .sequence = op.sequence,
                    .bytes = op.bytes,
                    .blocked_ns = op.blocked_ns,
                    .moved_bytes = op.moved_bytes,
                    .kind = op.collective,
                    .dtype = 7};
    ended.start_s = op.start_s;
    ended.stop_s = op.end_s;
    ended.enqueue_s = op.enqueue_s;
  }
}

void Recorder::ReadFlights(double at_s, double view_s, Snapshot& snapshot) {
  auto& state = engine_.rank(rank_);
  const Job& job = engine_.job();
  open_.assign(begun_.size(), {});
  for (auto& row : open_) row.fill(kNone);
  for (Op& op : state.ops) {
    if (op.enqueue_s > view_s) break;
    if (op.kind != Op::Kind::kTransfer || !job.comms[CommOf(op)].recorded) continue;
    const auto& comms = job.comms_of[rank_];
    const auto comm =
        static_cast<size_t>(std::find(comms.begin(), comms.end(), CommOf(op)) - comms.begin());
    const auto collective = static_cast<size_t>(op.collective);
    begun_[comm][collective] = std::max(begun_[comm][collective], op.sequence + 1);
    last_write_s_ = std::max(last_write_s_, op.enqueue_s);
    if (op.over) continue;
    if (!op.seen) {
      op.seen = true;
      op.slot = TakeSlot();
    }
    open_[comm][collective] = std::min(open_[comm][collective], op.sequence);
    const bool started = op.start_s <= view_s;
    const double since_s = started ? op.start_s : op.enqueue_s;
    if (at_s - since_s < 0.6) continue;  // no rule reports it
    TableFlight& seen = snapshot.flights.emplace_back();
    seen.slot = op.slot;
    seen.flight = {.rank = Rank{rank_},
                   .record = {.communicator = job.comms[CommOf(op)].id,
                              .sequence = op.sequence,
                              .bytes = op.bytes,
                              .kind = op.collective,
                              .dtype = 7},
                   .started = started,
                   .age_ns = static_cast<uint64_t>((at_s - since_s) * 1e9)};
    if (started && engine_.setting().reports_edges) seen.flight.edge = engine_.EdgeOf(rank_, op);
    if (!seen.flight.edge && job.channels[op.channel].pair) {
      seen.flight.edge = detect::PeerEdge{Rank{job.channels[op.channel].members[1 - op.member]},
                                          op.member == 0 ? Direction::kSend : Direction::kReceive,
                                          EdgeState::kIdle, 0};
    }
  }
  for (size_t comm = 0; comm < begun_.size(); ++comm) {
    for (size_t collective = 0; collective < begun_[comm].size(); ++collective) {
      const uint64_t count = std::min(begun_[comm][collective], open_[comm][collective]);
      if (count == 0) continue;
      snapshot.completed.push_back({Rank{rank_},
                                    {job.comms[job.comms_of[rank_][comm]].id,
                                     static_cast<CollectiveKind>(collective), count}});
    }
  }
  // Drop operations that have ended and were reported.
  while (!state.ops.empty()) {
    const Op& op = state.ops.front();
    if (op.end_s > view_s) break;
    const bool recorded = op.kind == Op::Kind::kTransfer && job.comms[CommOf(op)].recorded;
    if (recorded && !op.over) break;
    state.ops.pop_front();
    ++state.base;
  }
}

void Recorder::ReadSteps(double at_s, double view_s, Snapshot& snapshot) {
  auto& state = engine_.rank(rank_);
  while (!state.steps.empty() && state.steps.front().at_s <= view_s) {
    const StepMark& mark = state.steps.front();
    snapshot.steps.push_back({mark.step, static_cast<uint64_t>(mark.duration_s * 1e9)});
    steps_ = mark.step + 1;
    step_at_s_ = mark.at_s;
    last_write_s_ = std::max(last_write_s_, mark.at_s);
    state.steps.pop_front();
  }
  snapshot.step = steps_;
  snapshot.since_step_s = at_s - step_at_s_;
  for (const PhaseMark& mark : state.phases) {
    if (mark.from_s <= view_s && mark.to_s > read_until_s_) snapshot.phases |= mark.bit;
  }
  std::erase_if(state.phases, [&](const PhaseMark& mark) { return mark.to_s <= view_s; });
}

}  // namespace holdfast::sim::program
