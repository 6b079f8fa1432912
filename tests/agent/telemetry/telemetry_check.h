#pragma once

#include <string>

#include "agent/telemetry/rank_telemetry.h"

namespace holdfast::agent {

/// "" when every number of a look is within its bounds; otherwise which is not. For tests and the
/// fuzzer: it must hold whatever the trainer wrote.
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
  for (const InFlightView& view : seen.in_flight) {
    if (bad(view.values) || view.age_ns > kMost) return "of an operation in flight";
    if (view.edge && (view.edge->peer >= kRanks || view.edge->age_ns > view.age_ns)) return "edge";
  }
  for (const CommunicatorView& view : seen.communicators) {
    if (view.size == 0 || view.size > kRanks || view.index >= view.size) return "of a communicator";
    if (!view.members.empty() && view.members.size() != view.size) return "of its members";
    for (uint32_t member : view.members) {
      if (member >= kRanks) return "of a member";
    }
  }
  for (const PeerSumsView& sums : seen.peers) {
    if (sums.peer >= kRanks || sums.bytes > kMost || sums.transfer_ns > kMost) return "of sums";
  }
  for (const StepView& step : seen.steps) {
    if (step.step >= kMost || step.duration_ns > kMost) return "of a step";
  }
  for (const CompletedCount& count : seen.completed) {
    if (count.count == 0 || count.count > kMost) return "of a count";
  }
  if (seen.progress.step >= kMost || seen.progress.age_ns > kMost) return "of progress";
  return "";
}

}  // namespace holdfast::agent
