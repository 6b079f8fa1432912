#pragma once

#include <string>

#include "agent/telemetry/rank_telemetry.h"

namespace holdfast::agent {

/// Returns "" when every number of a poll is within its bounds, otherwise the name of one that is
/// not. For tests and the fuzzer: the bounds must hold for any bytes of the trainer.
inline std::string ImpossibleNumber(const RankTelemetry& seen) {
  constexpr uint64_t kMost = 1ULL << 60;
  constexpr uint32_t kRanks = 1U << 20;
  if (seen.in_flight.size() > kInFlightMax) return "operations in flight";
  if (seen.ended.size() > kRingEntries) return "records";
  if (seen.steps.size() > kStepRecords) return "steps";
  if (seen.communicators.size() > kCommunicatorsMax) return "communicators";
  if (seen.peers.size() > kPeerCellsMax) return "sums over peers";
  if (seen.completed.size() > size_t{kCommunicatorsMax} * kCollectiveKinds) return "counts";
  auto bad = [&](const CollectiveValues& values) {
    return static_cast<uint8_t>(values.kind) >= kCollectiveKinds || values.bytes > kMost ||
           values.sequence >= kMost || values.moved_bytes > kMost || values.device_ns > kMost ||
           values.blocked_ns > kMost || (values.peer != kNoPeer && values.peer >= kRanks) ||
           (values.started_ns != 0 && values.started_ns < values.enqueued_ns);
  };
  for (const CollectiveValues& values : seen.ended) {
    if (bad(values) || values.ended_ns < values.started_ns) return "of a record";
  }
  for (const ObservedFlight& flight : seen.in_flight) {
    if (bad(flight.values) || flight.age_ns > kMost) return "of an operation in flight";
    if (!flight.edge) continue;
    if (flight.edge->peer >= kRanks || flight.edge->age_ns > flight.age_ns) return "edge";
  }
  for (const ObservedCommunicator& one : seen.communicators) {
    if (one.size == 0 || one.size > kRanks || one.index >= one.size) return "of a communicator";
    if (!one.members.empty() && one.members.size() != one.size) return "of its members";
    for (uint32_t member : one.members) {
      if (member >= kRanks) return "of a member";
    }
  }
  for (const ObservedPeer& sums : seen.peers) {
    if (sums.peer >= kRanks || sums.bytes > kMost || sums.transfer_ns > kMost) return "of sums";
  }
  for (const ObservedStep& step : seen.steps) {
    if (step.step >= kMost || step.duration_ns > kMost) return "of a step";
  }
  for (const CompletedCount& count : seen.completed) {
    if (count.count == 0 || count.count > kMost) return "of a count";
  }
  if (seen.progress.step >= kMost || seen.progress.age_ns > kMost) return "of progress";
  return "";
}

}  // namespace holdfast::agent
