#pragma once

#include <cstdint>
#include <vector>

#include "storage/collective/collective.h"

// The result of one poll of a rank's table: plain values. Every number is within its bounds, even
// if the trainer wrote invalid ones. Times are the node's CLOCK_MONOTONIC; only ages and durations
// are comparable with those of other nodes.

namespace holdfast::agent {

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
  std::vector<StepTime> steps;  // completed since the last poll, oldest first
  std::vector<Communicator> communicators;
  bool communicators_changed = false;
  std::vector<CollectiveRecord> ended;  // since the last poll, oldest first
  std::vector<InFlight> in_flight;
  std::vector<CompletedCount> completed;
  std::vector<PeerTransfers> peers;  // sums since the last poll
  TelemetryGaps gaps;
};

}  // namespace holdfast::agent
