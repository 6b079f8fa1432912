#pragma once

#include <string>

#include "agent/telemetry/rank_telemetry.h"

namespace holdfast::agent {

/// Returns "" when every number of a poll is within its bounds, otherwise the name of one that is
/// not. For tests and the fuzzer: the bounds must hold whatever bytes the trainer writes.
inline std::string ImpossibleNumber(const RankTelemetry& seen) {
  constexpr uint64_t kMost = 1ULL << 60;
  constexpr uint32_t kRanks = 1U << 20;
  if (seen.in_flight.size() > kInFlightMax) return "operations in flight";
  if (seen.ended.size() > kRingEntries) return "records";
  if (seen.steps.size() > kStepRecords) return "steps";
  if (seen.communicators.size() > kCommunicatorsMax) return "communicators";
  if (seen.peers.size() > kPeerCellsMax) return "sums over peers";
  if (seen.completed.size() > size_t{kCommunicatorsMax} * kCollectiveKinds) return "counts";
  auto bad = [&](const CollectiveRecord& record) {
    return static_cast<uint8_t>(record.kind) >= kCollectiveKinds || record.bytes > kMost ||
           record.sequence >= kMost || record.moved_bytes > kMost || record.device_ns > kMost ||
           record.blocked_ns > kMost || (record.peer != kNoPeer && record.peer >= kRanks) ||
           (record.started_ns != 0 && record.started_ns < record.enqueued_ns);
  };
  for (const CollectiveRecord& record : seen.ended) {
    if (bad(record) || record.ended_ns < record.started_ns) return "of a record";
  }
  for (const InFlight& flight : seen.in_flight) {
    if (bad(flight.record) || flight.age_ns > kMost) return "of an operation in flight";
    if (!flight.edge) continue;
    if (flight.edge->peer >= kRanks || flight.edge->age_ns > flight.age_ns) return "edge";
  }
  for (const Communicator& one : seen.communicators) {
    if (one.size == 0 || one.size > kRanks || one.index >= one.size) return "of a communicator";
    if (!one.members.empty() && one.members.size() != one.size) return "of its members";
    for (Rank member : one.members) {
      if (member.value >= kRanks) return "of a member";
    }
  }
  for (const PeerTransfers& sums : seen.peers) {
    if (sums.peer >= kRanks || sums.bytes > kMost || sums.transfer_ns > kMost) return "of sums";
  }
  for (const StepTime& step : seen.steps) {
    if (step.step >= kMost || step.duration_ns > kMost) return "of a step";
  }
  for (const CompletedCount& count : seen.completed) {
    if (count.count == 0 || count.count > kMost) return "of a count";
  }
  if (seen.progress.step >= kMost || seen.progress.age_ns > kMost) return "of progress";
  return "";
}

}  // namespace holdfast::agent
