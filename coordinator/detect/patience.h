#pragma once

#include "coordinator/detect/table.h"
#include "coordinator/detect/waits.h"

// How long a root of the waits-for graph may make no progress before it counts as hung. A false
// restart costs all ranks the steps since the last save and the time to restore it; patience costs
// only the wait. If a stall could be a legitimate pause, the patience is therefore as long as the
// job's legitimate pauses, and at least a minute.

namespace holdfast::detect {

/// What the reports show of the root.
enum class RootState {
  kStopped,               // its process is stopped: no progress is possible
  kCommunicating,         // all ranks are in communication: only a link that recovers can end it
  kGpuStalled,            // only its GPU delays the job: it does not start what is enqueued
  kIdle,                  // a rank outside communication, whose process did not run either
  kOutsideCommunication,  // likewise, and its process may have run
  kRunning,               // likewise, and its process runs: it may compile or evaluate
  kNodeSilent,            // its node sends no digests, and no node probed it
  kUnreachable,           // its node sends no digests, and answered no node that probed it
  kAgentSilent,           // its node answers other nodes, but its agent sends no digests
};

class Patience {
 public:
  Patience(const Table& table, const DetectorOptions& options) : table_(table), options_(options) {}

  /// Returns how long a wait must last to be a suspicion, in ns.
  uint64_t ToSuspect(const Operation& operation) const;
  /// Returns how long a wait must last to be a verdict, in ns. `rank`: the rank that others wait
  /// for; kNone if there is none.
  uint64_t ToBlame(const Operation& operation, uint32_t rank, RootState state,
                   Clock::TimePoint now) const;
  /// Returns for how long the rank has certainly made no progress, in ns: since its last step, less
  /// twice its longest recent step and its marked phases. 0 if its steps are not known.
  uint64_t IdleFor(uint32_t rank) const;

 private:
  bool KnowsSteps(uint32_t rank) const;
  uint64_t P99Of(const Operation& operation) const;
  uint64_t UsualPause(const Operation& operation, uint32_t rank, Clock::TimePoint now) const;

  const Table& table_;
  const DetectorOptions& options_;
};

}  // namespace holdfast::detect
