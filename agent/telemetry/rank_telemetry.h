#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "agent/api/collective_table.h"

// What an agent knows of one of its ranks after a look at its table: plain values, every number
// within its bounds whatever the trainer wrote. Times are the node's CLOCK_MONOTONIC; ages and
// durations are what may be compared with those of other nodes.

namespace holdfast::agent {

struct CommunicatorView {
  uint64_t id = 0;
  uint32_t size = 0;
  uint32_t index = 0;
  CommunicatorRole role = CommunicatorRole::kUnknown;
  /// Ranks of the job by index; empty when this process does not know them or they are more than
  /// the table holds: then every member tells its own index.
  std::vector<uint32_t> members;

  bool operator==(const CommunicatorView&) const = default;
};

/// The transfer that an operation in flight has waited for longest.
struct EdgeView {
  uint32_t peer = 0;  // index in the communicator
  Direction direction = Direction::kSend;
  EdgeState state = EdgeState::kIdle;
  uint64_t age_ns = 0;  // in this state
};

struct InFlightView {
  CollectiveValues values;
  bool started = false;
  uint64_t age_ns = 0;  // since it started, or was enqueued when it has not
  std::optional<EdgeView> edge;
};

/// Operations 0 … count − 1 of this kind are complete.
struct CompletedCount {
  uint64_t communicator = 0;
  CollectiveKind kind = CollectiveKind::kOther;
  uint64_t count = 0;
};

/// Sums over the transfers with one peer since the look before.
struct PeerSumsView {
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

struct StepView {
  uint64_t step = 0;
  uint64_t duration_ns = 0;
};

struct ProgressView {
  bool known = false;  // the trainer has told a step
  uint64_t step = 0;
  uint64_t age_ns = 0;  // since it began
  uint64_t last_step_ns = 0;
};

/// What was left out, since the look before.
struct TelemetryGaps {
  uint64_t dropped = 0;   // by the trainer, for want of room
  uint64_t lost = 0;      // records overwritten before this look
  uint64_t nonsense = 0;  // numbers that cannot be
};

struct RankTelemetry {
  /// False: this trainer tells nothing (yet).
  bool present = false;
  /// Another process, or another table, than at the look before: all that is below is new.
  bool restarted = false;
  ProgressView progress;
  uint32_t phases = 0;  // bit p: phase p (agent::Phase) is open
  /// Since the trainer wrote anything: a step, a begin, an end.
  uint64_t silent_ns = 0;
  std::vector<StepView> steps;  // over since the look before, oldest first
  std::vector<CommunicatorView> communicators;
  bool communicators_changed = false;
  std::vector<CollectiveValues> ended;  // since the look before, oldest first
  std::vector<InFlightView> in_flight;
  std::vector<CompletedCount> completed;
  std::vector<PeerSumsView> peers;
  TelemetryGaps gaps;
};

}  // namespace holdfast::agent
