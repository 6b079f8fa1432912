#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "agent/api/collective_table.h"

// The result of one poll of a rank's table: plain values, every number within its bounds whatever
// the trainer wrote. Times are the node's CLOCK_MONOTONIC; only ages and durations are comparable
// with those of other nodes.

namespace holdfast::agent {

struct ObservedCommunicator {
  uint64_t id = 0;
  uint32_t size = 0;
  uint32_t index = 0;
  CommunicatorRole role = CommunicatorRole::kUnknown;
  /// Ranks of the job by index; empty when the trainer does not know them or the table cannot hold
  /// them all. Then every member reports its own index.
  std::vector<uint32_t> members;

  bool operator==(const ObservedCommunicator&) const = default;
};

/// The transfer that an operation in flight has waited for longest.
struct ObservedEdge {
  uint32_t peer = 0;  // index in the communicator
  Direction direction = Direction::kSend;
  EdgeState state = EdgeState::kIdle;
  uint64_t age_ns = 0;  // in this state
};

struct ObservedFlight {
  CollectiveValues values;
  bool started = false;
  uint64_t age_ns = 0;  // since its start, or since it was enqueued
  std::optional<ObservedEdge> edge;
};

/// Operations 0 … count − 1 of this kind are complete.
struct CompletedCount {
  uint64_t communicator = 0;
  CollectiveKind kind = CollectiveKind::kOther;
  uint64_t count = 0;
};

/// Sums over the transfers with one peer since the last poll.
struct ObservedPeer {
  uint64_t communicator = 0;
  uint32_t peer = 0;  // index in the communicator
  Direction direction = Direction::kSend;
  uint64_t transfers = 0;
  uint64_t bytes = 0;
  uint64_t gpu_wait_ns = 0;
  uint64_t peer_wait_ns = 0;
  uint64_t transfer_ns = 0;
  uint64_t flush_ns = 0;
};

struct ObservedStep {
  uint64_t step = 0;
  uint64_t duration_ns = 0;
};

struct ObservedProgress {
  bool known = false;  // the trainer has reported a step
  uint64_t step = 0;
  uint64_t age_ns = 0;  // since the step began
  uint64_t last_step_ns = 0;
};

/// Counts of omitted records since the last poll.
struct TelemetryGaps {
  uint64_t dropped = 0;   // by the trainer, for lack of space
  uint64_t lost = 0;      // records overwritten before this poll
  uint64_t nonsense = 0;  // implausible values
};

struct RankTelemetry {
  /// False: this trainer has not attached to the table.
  bool present = false;
  /// The process or the table differs from the last poll: all data below is new.
  bool restarted = false;
  ObservedProgress progress;
  uint32_t phases = 0;  // bit p: phase p (agent::Phase) is open
  /// Time since the trainer's last record: a step, a begin or an end.
  uint64_t silent_ns = 0;
  std::vector<ObservedStep> steps;  // completed since the last poll, oldest first
  std::vector<ObservedCommunicator> communicators;
  bool communicators_changed = false;
  std::vector<CollectiveValues> ended;  // since the last poll, oldest first
  std::vector<ObservedFlight> in_flight;
  std::vector<CompletedCount> completed;
  std::vector<ObservedPeer> peers;
  TelemetryGaps gaps;
};

}  // namespace holdfast::agent
