#include "coordinator/api/telemetry_convert.h"

namespace holdfast::coord {

StepTime FromProto(const pb::StepTime& step) {
  return {.step = step.step(), .duration_ns = step.duration_ns()};
}

void ToProto(const StepTime& step, pb::StepTime* out) {
  out->set_step(step.step);
  out->set_duration_ns(step.duration_ns);
}

Communicator FromProto(const pb::Communicator& communicator) {
  Communicator out{.id = {communicator.id()},
                   .role = RoleOfNumber(communicator.role()),
                   .size = communicator.size(),
                   .index = communicator.index()};
  for (const uint32_t member : communicator.members()) out.members.push_back(Rank{member});
  return out;
}

void ToProto(const Communicator& communicator, pb::Communicator* out) {
  out->set_id(communicator.id.value);
  out->set_role(static_cast<uint32_t>(communicator.role));
  out->set_size(communicator.size);
  out->set_index(communicator.index);
  for (const Rank member : communicator.members) out->add_members(member.value);
}

CollectiveRecord FromProto(const pb::CollectiveRecord& record) {
  CollectiveRecord out;
  out.communicator = {record.communicator()};
  out.kind = KindOfNumber(record.kind());
  out.dtype = static_cast<uint8_t>(record.dtype());
  out.algorithm = AlgorithmOfNumber(record.algorithm());
  out.protocol = ProtocolOfNumber(record.protocol());
  out.sequence = record.sequence();
  out.bytes = record.bytes();
  out.started_ns = record.started_ns();
  if (record.duration_ns() != 0) out.ended_ns = record.started_ns() + record.duration_ns();
  if (record.queued_ns() != 0 && record.queued_ns() < record.started_ns()) {
    out.enqueued_ns = record.started_ns() - record.queued_ns();
  }
  out.blocked_ns = record.blocked_ns();
  out.moved_bytes = record.moved_bytes();
  return out;
}

void ToProto(const CollectiveRecord& record, pb::CollectiveRecord* out) {
  out->set_communicator(record.communicator.value);
  out->set_kind(static_cast<uint32_t>(record.kind));
  out->set_dtype(record.dtype);
  out->set_algorithm(static_cast<uint32_t>(record.algorithm));
  out->set_protocol(static_cast<uint32_t>(record.protocol));
  out->set_sequence(record.sequence);
  out->set_bytes(record.bytes);
  out->set_started_ns(record.started_ns);
  if (record.ended_ns > record.started_ns) {
    out->set_duration_ns(record.ended_ns - record.started_ns);
  }
  if (record.enqueued_ns != 0 && record.started_ns > record.enqueued_ns) {
    out->set_queued_ns(record.started_ns - record.enqueued_ns);
  }
  out->set_blocked_ns(record.blocked_ns);
  out->set_moved_bytes(record.moved_bytes);
}

InFlight FromProto(const pb::InFlight& flight) {
  InFlight out{
      .record = FromProto(flight.record()), .started = flight.started(), .age_ns = flight.age_ns()};
  if (flight.has_edge()) {
    out.edge = EdgeWait{.peer = flight.peer(),
                        .direction = DirectionOfNumber(flight.direction()),
                        .state = EdgeStateOfNumber(flight.edge_state())};
    if (flight.has_edge_completed()) out.edge->completed = flight.edge_completed();
  }
  return out;
}

void ToProto(const InFlight& flight, pb::InFlight* out) {
  ToProto(flight.record, out->mutable_record());
  out->set_started(flight.started);
  out->set_age_ns(flight.age_ns);
  if (!flight.edge) return;
  out->set_has_edge(true);
  out->set_peer(flight.edge->peer);
  out->set_direction(static_cast<uint32_t>(flight.edge->direction));
  out->set_edge_state(static_cast<uint32_t>(flight.edge->state));
  if (flight.edge->completed) out->set_edge_completed(*flight.edge->completed);
}

CompletedCount FromProto(const pb::CompletedCount& completed) {
  return {.communicator = {completed.communicator()},
          .kind = KindOfNumber(completed.kind()),
          .count = completed.count()};
}

void ToProto(const CompletedCount& completed, pb::CompletedCount* out) {
  out->set_communicator(completed.communicator.value);
  out->set_kind(static_cast<uint32_t>(completed.kind));
  out->set_count(completed.count);
}

PeerTransfers FromProto(const pb::PeerTransfers& transfers) {
  PeerTransfers out{.communicator = {transfers.communicator()},
                    .peer = transfers.peer(),
                    .direction = DirectionOfNumber(transfers.direction()),
                    .transfers = transfers.transfers(),
                    .bytes = transfers.bytes()};
  (out.direction == Direction::kSend ? out.transfer_ns : out.peer_wait_ns) = transfers.wait_ns();
  return out;
}

void ToProto(const PeerTransfers& transfers, pb::PeerTransfers* out) {
  out->set_communicator(transfers.communicator.value);
  out->set_peer(transfers.peer);
  out->set_direction(static_cast<uint32_t>(transfers.direction));
  out->set_bytes(transfers.bytes);
  out->set_wait_ns(transfers.direction == Direction::kSend ? transfers.transfer_ns
                                                           : transfers.peer_wait_ns);
  out->set_transfers(transfers.transfers);
}

}  // namespace holdfast::coord
