#pragma once

#include <vector>

#include "coordinator/detect/table.h"

// Finds the cause of a hang in the waits-for graph.

namespace holdfast::detect {

/// Returns the ranks whose processes ended without success.
std::vector<Verdict> FindDead(const Table& table);

struct Hangs {
  std::vector<Verdict> found;  // suspicions have no action
  bool waits = false;          // a rank has been in an operation for long
  /// How long the job has stalled outside marked phases; 0 if it makes progress.
  uint64_t stall_ns = 0;
};

/// Returns the roots of a hang. A rank waits for the operations that it has started. An operation
/// waits for its members that have not started it. A vertex that waits for nothing else is a root:
///   a rank                → it hangs outside communication (or it is dead, or its node is lost)
///   a complete operation  → its transfers hang; the least advanced connection is followed
///   a cycle               → the program deadlocks
/// Members of one operation with different sizes or types are a software mismatch and are reported
/// first. A hang is a suspicion from `hang_after` on. It becomes a verdict once the root has made
/// no progress for its patience (patience.h), which is short if the root's process is stopped or
/// its node is unreachable. Ranks in a marked phase are excused unless the phase is far longer than
/// usual.
Hangs FindHangs(const Table& table, Clock::TimePoint now, const DetectorOptions& options);

}  // namespace holdfast::detect
