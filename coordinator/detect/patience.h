#pragma once

#include "coordinator/detect/table.h"
#include "coordinator/detect/waits.h"

// How long a root of the waits-for graph may stand still before it is called hung. A false restart
// costs the steps since the last save and the time to load it on all ranks; waiting costs the wait.
// So what a legitimate pause looks like as well is given the time of legitimate pauses: what this
// job has shown of them, and a minute at least.

namespace holdfast::detect {

/// What the root's own state says.
enum class Standing {
  kStopped,      // its process is stopped: it cannot move
  kStuck,        // everybody is in communication: nothing can move, but links recover
  kElsewhere,    // it is outside of communication: it may read, or wait for its GPU
  kRunning,      // the same, and its process runs: it may compile or evaluate
  kSilent,       // its node says nothing, and nobody was asked about it
  kOutOfReach,   // its node says nothing, and those who asked it had no answer
  kAgentSilent,  // its node answers others, and its agent says nothing
};

class Patience {
 public:
  Patience(const Table& table, const DetectorOptions& options) : table_(table), options_(options) {}

  /// From how long a wait on is a hang suspected.
  uint64_t ToSuspect(const Operation& operation) const;
  /// How long it must have lasted for a verdict. `rank`: that others wait for; kNone: nobody.
  uint64_t ToBlame(const Operation& operation, uint32_t rank, Standing standing,
                   Clock::TimePoint now) const;

 private:
  uint64_t SlowestUsual(const Operation& operation) const;
  uint64_t Usual(const Operation& operation, uint32_t rank, Clock::TimePoint now) const;

  const Table& table_;
  const DetectorOptions& options_;
};

}  // namespace holdfast::detect
